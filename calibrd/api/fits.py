"""Calls for fits: start, wait, list, cancel."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from calibrators.data import Kind
from calibrators.registry import DEFAULT_METHOD
from calibrd.api.base import idempotency_key
from calibrd.api.datasets import DatasetCalls
from calibrd.api.references import Reference, checked_name
from calibrd.api.versions import VersionCalls
from calibrd.errors import FitFailed, FitWasCancelled, WaitedTooLong, resume_hint
from calibrd.models import Dataset, Fit, Version
from calibrd.progress import FitProgress
from calibrd.transport.connection import drop_none
from calibrd.transport.flows import Flow, Pause, call
from calibrd.transport.responses import member_of

Params = Mapping[str, Any]
POLL_SECONDS = 1
QUIET_POLL_SECONDS = 20
RESPONSE_SECONDS = 15


class FitCalls(DatasetCalls, VersionCalls):
    """Calls for fits."""

    @call
    def fit(
        self,
        name: str,
        logits: Any = None,
        labels: Any = None,
        *,
        dataset: str | Dataset | None = None,
        method: str = DEFAULT_METHOD,
        params: Params | None = None,
        seed: int = 0,
        model: str | None = None,
        kind: Kind = "logits",
        segments: Any = None,
        features: Any = None,
        head: Any = None,
        held_out: float | None = None,
        evaluation: str | Dataset | None = None,
        device: str = "auto",
        tags: dict[str, str] | None = None,
        description: str = "",
        delete_after_fit: bool = False,
        progress: bool = True,
        timeout: float | None = None,
    ) -> Flow[Version]:
        """Fit a calibrator on the service and return the new version with its report.

        Pass ``logits`` and ``labels``, which are uploaded, or an existing ``dataset``. The
        "segmented" method also needs ``segments``, the segment of each row. Some methods need
        ``features``, the input to the model's last layer, and ``head``, that layer's
        ``(weight, bias)``. ``model`` is the fingerprint of the model that produced the logits.
        After ``timeout`` seconds, WaitedTooLong is raised, but the fit continues; ``wait`` resumes
        waiting.
        """
        fit = yield from FitCalls.start_fit.flow(
            self,
            name,
            logits,
            labels,
            dataset=dataset,
            methods=[(method, params or {})],
            seed=seed,
            model=model,
            kind=kind,
            segments=segments,
            features=features,
            head=head,
            held_out=held_out,
            evaluation=evaluation,
            device=device,
            tags=tags,
            description=description,
            delete_after_fit=delete_after_fit,
            progress=progress,
        )
        done = yield from self._finished(fit, progress=progress, timeout=timeout)
        number = member_of(done.versions, 0)
        return (yield from self.version_at(Reference(name, str(number))))

    @call
    def start_fit(
        self,
        name: str,
        logits: Any = None,
        labels: Any = None,
        *,
        dataset: str | Dataset | None = None,
        methods: Sequence[str | tuple[str, Params]] = (DEFAULT_METHOD,),
        seed: int = 0,
        model: str | None = None,
        kind: Kind = "logits",
        segments: Any = None,
        features: Any = None,
        head: Any = None,
        held_out: float | None = None,
        evaluation: str | Dataset | None = None,
        device: str = "auto",
        tags: dict[str, str] | None = None,
        description: str = "",
        delete_after_fit: bool = False,
        progress: bool = True,
    ) -> Flow[Fit]:
        """Start a fit and return without waiting for it; each method creates a version.

        Give each method by name or as ``(name, parameters)``. ``wait`` waits for the result.
        """
        if (logits is None) != (labels is None) or (logits is None) == (dataset is None):
            raise TypeError("a fit takes either logits and labels, or dataset=, but not both")
        more = any(one is not None for one in (segments, features, head))
        if dataset is not None and (delete_after_fit or kind != "logits" or more):
            raise TypeError(
                "delete_after_fit=, kind=, segments=, features= and head= cannot be combined with "
                "dataset=: they apply to logits that this call uploads"
            )
        checked_name(name)
        evaluation_id = _id_of(evaluation, "evaluation")
        if dataset is None:
            dataset = yield from DatasetCalls.upload.flow(
                self,
                logits,
                labels,
                kind=kind,
                segments=segments,
                features=features,
                head=head,
                delete_after_fit=delete_after_fit,
                progress=progress,
            )
        pairs = [(one, {}) if isinstance(one, str) else one for one in methods]
        body = drop_none(
            dataset=_id_of(dataset, "dataset"),
            methods=[{"method": method, "params": dict(params)} for method, params in pairs],
            seed=seed,
            model=model,
            held_out=held_out,
            evaluation=evaluation_id,
            device=device,
            tags=tags,
            description=description,
        )
        place = ("calibrators", name, "fits")
        return (
            yield from self.request_record(
                Fit, "POST", *place, body=body, headers=idempotency_key(), repeatable=True
            )
        )

    @call
    def wait(
        self, fit: str | Fit, *, progress: bool = True, timeout: float | None = None
    ) -> Flow[Fit]:
        """Wait for a fit and return it; raise FitFailed, FitWasCancelled or WaitedTooLong."""
        if isinstance(fit, str):
            fit = yield from self.request_record(Fit, "GET", "fits", fit)
        return (yield from self._finished(fit, progress=progress, timeout=timeout))

    @call
    def fits(
        self,
        *,
        calibrator: str | None = None,
        status: str | None = None,
        limit: int | None = None,
    ) -> Flow[list[Fit]]:
        """List fits, newest first."""
        return (
            yield from self.request_all(
                Fit, "fits", limit=limit, calibrator=calibrator, status=status
            )
        )

    @call
    def get_fit(self, id: str) -> Flow[Fit]:
        """Return a fit with its progress."""
        return (yield from self.request_record(Fit, "GET", "fits", id))

    @call
    def cancel(self, fit: str | Fit) -> Flow[Fit]:
        """Cancel a fit: at once if it is queued, within seconds if it is running."""
        id = fit if isinstance(fit, str) else fit.id
        return (yield from self.request_record(Fit, "DELETE", "fits", id))

    def _finished(self, fit: Fit, *, progress: bool, timeout: float | None) -> Flow[Fit]:
        """Return the fit once it has succeeded; use long polling."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        with FitProgress(fit, shown=progress) as bar:
            while not fit.is_finished:
                left = end - time.monotonic()
                if left <= 0:
                    raise WaitedTooLong(fit.id, timeout or 0.0)
                try:
                    fit = yield from self._polled(fit, left, quiet=not progress)
                except BaseException as error:
                    error.add_note(f"fit {fit.id} continues: {resume_hint(fit.id)}")
                    raise
                bar.show(fit)
        if fit.status == "cancelled":
            raise FitWasCancelled(fit.id)
        if fit.status != "succeeded":
            reason = fit.error or {}
            raise FitFailed(
                str(reason.get("code", "unknown")), str(reason.get("message", "")), fit.id
            )
        return fit

    def _polled(self, fit: Fit, left: float, *, quiet: bool) -> Flow[Fit]:
        """Return the fit once it has finished or the polling interval has passed."""
        wait = min(QUIET_POLL_SECONDS if quiet else POLL_SECONDS, math.floor(min(left, 60)))
        if not wait:  # the service only waits for whole seconds
            yield Pause(left)
        return (
            yield from self.request_record(
                Fit,
                "GET",
                "fits",
                fit.id,
                headers={"Prefer": f"wait={wait}"} if wait else {},
                timeout=wait + min(RESPONSE_SECONDS, self.connection.timeout),
                retry_seconds=min(left, self.connection.retry_seconds),
            )
        )


def _id_of(dataset: str | Dataset | None, name: str) -> str | None:
    if dataset is None or isinstance(dataset, str):
        return dataset
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"{name} must be a Dataset returned by upload(), or its id, "
            f"got {type(dataset).__name__}"
        )
    return dataset.id
