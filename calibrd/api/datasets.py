"""Upload, look, delete."""

from __future__ import annotations

from typing import Any

from calibrators.data import Kind
from calibrd.api.base import Asking
from calibrd.api.upload import Retention, Upload
from calibrd.errors import NotFound
from calibrd.io.payload import Payload, packed
from calibrd.models import Dataset
from calibrd.transport.flows import Flow, Work, call


class DatasetCalls(Asking):
    """Calls about datasets."""

    @call
    def upload(
        self,
        logits: Any,
        labels: Any,
        *,
        kind: Kind = "logits",
        segments: Any = None,
        delete_after_fit: bool = False,
        days: float | None = None,
        progress: bool = True,
    ) -> Flow[Dataset]:
        """Send logits (or, with ``kind="probabilities"``, these) and labels.

        ``segments`` name the segment of each row, as text or integers, for the method "segmented".
        Arrays of numpy, torch, pandas, polars or pyarrow, or lists. They are checked here first;
        bytes that the service has already are not sent. Big sets go in parts, several at once, and
        an upload that broke off goes on with the parts that are missing.
        """
        payload: Payload = yield Work(lambda: packed(logits, labels, kind, segments))
        keeping = Retention(delete_after_fit, days)
        return (yield from Upload(self, payload, keeping, progress=progress).flow())

    @call
    def datasets(self, *, limit: int | None = None) -> Flow[list[Dataset]]:
        """The datasets of this workspace, newest first."""
        return (yield from self.ask_for_all(Dataset, "datasets", limit=limit))

    @call
    def get_dataset(self, id: str) -> Flow[Dataset]:
        """A dataset, by its id or as ``sha256:...``."""
        return (yield from self.ask_for(Dataset, "GET", "datasets", id))

    @call
    def delete_dataset(self, id: str) -> Flow[None]:
        """Delete a dataset; what was fitted on it stays."""
        try:
            yield from self.ask("DELETE", "datasets", id)
        except NotFound as error:
            if not error.repeated:  # it was there when it was asked for first
                raise
