"""Calls for datasets: upload, list, delete."""

from __future__ import annotations

from typing import Any

from calibrators.data import Kind
from calibrd.api.base import ApiBase
from calibrd.api.upload import Retention, Upload
from calibrd.errors import NotFound
from calibrd.io.payload import Payload, pack_dataset
from calibrd.models import Dataset
from calibrd.transport.flows import Flow, Work, call


class DatasetCalls(ApiBase):
    """Calls for datasets."""

    @call
    def upload(
        self,
        logits: Any,
        labels: Any,
        *,
        kind: Kind = "logits",
        segments: Any = None,
        features: Any = None,
        head: Any = None,
        delete_after_fit: bool = False,
        days: float | None = None,
        progress: bool = True,
    ) -> Flow[Dataset]:
        """Upload logits, or probabilities with ``kind="probabilities"``, and their labels.

        ``segments`` holds the segment of each row, as strings or integers, for the "segmented"
        method. ``features`` (n, d) holds the input to the model's last layer, and ``head`` is that
        layer's ``(weight, bias)``, for methods that need them. All arguments may be lists, or data
        from numpy, torch, pandas, polars or pyarrow. They are checked before anything is sent.
        Bytes that the service already has are not sent again. Large datasets are sent in parts,
        several at a time, and an interrupted upload resumes with the missing parts.
        """
        payload: Payload = yield Work(
            lambda: pack_dataset(logits, labels, kind, segments, features, head)
        )
        retention = Retention(delete_after_fit, days)
        return (yield from Upload(self, payload, retention, progress=progress).flow())

    @call
    def datasets(self, *, limit: int | None = None) -> Flow[list[Dataset]]:
        """List the datasets of this workspace, newest first."""
        return (yield from self.request_all(Dataset, "datasets", limit=limit))

    @call
    def get_dataset(self, id: str) -> Flow[Dataset]:
        """Return a dataset by its id or ``sha256:...``."""
        return (yield from self.request_record(Dataset, "GET", "datasets", id))

    @call
    def delete_dataset(self, id: str) -> Flow[None]:
        """Delete a dataset; versions fitted on it are kept."""
        try:
            yield from self.request("DELETE", "datasets", id)
        except NotFound as error:
            if not error.repeated:  # otherwise an earlier attempt deleted it
                raise
