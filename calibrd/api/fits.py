"""Order fits, watch them, and get what they made."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from calibrators.data import Kind
from calibrators.registry import DEFAULT_METHOD
from calibrd.api.base import once
from calibrd.api.datasets import DatasetCalls
from calibrd.api.references import Reference, checked_name
from calibrd.api.versions import VersionCalls
from calibrd.errors import FitFailed, FitWasCancelled, WaitedTooLong, going_on
from calibrd.models import Dataset, Fit, Version
from calibrd.progress import FitProgress
from calibrd.transport.connection import given
from calibrd.transport.flows import Flow, Pause, call
from calibrd.transport.responses import member_of

Params = Mapping[str, Any]
LOOK_SECONDS = 1
CALM_LOOK_SECONDS = 20
ANSWER_SECONDS = 15


class FitCalls(DatasetCalls, VersionCalls):
    """Calls about fits."""

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
        held_out: float | None = None,
        evaluation: str | Dataset | None = None,
        device: str = "auto",
        tags: dict[str, str] | None = None,
        description: str = "",
        delete_after_fit: bool = False,
        progress: bool = True,
        timeout: float | None = None,
    ) -> Flow[Version]:
        """Fit a calibrator on the service and give the version it made, with its report.

        On ``logits`` and ``labels`` (and ``segments``, the segment of each row, for the method
        "segmented"), which are uploaded, or on a ``dataset`` that is there.
        ``model`` is the fingerprint of the model whose logits these are. After ``timeout`` seconds
        WaitedTooLong is raised; the fit goes on, and ``wait`` waits for it.
        """
        ordered = yield from FitCalls.order.flow(
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
            held_out=held_out,
            evaluation=evaluation,
            device=device,
            tags=tags,
            description=description,
            delete_after_fit=delete_after_fit,
            progress=progress,
        )
        done = yield from self._finished(ordered, progress=progress, timeout=timeout)
        number = member_of(done.versions, 0)
        return (yield from self.version_at(Reference(name, str(number))))

    @call
    def order(
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
        held_out: float | None = None,
        evaluation: str | Dataset | None = None,
        device: str = "auto",
        tags: dict[str, str] | None = None,
        description: str = "",
        delete_after_fit: bool = False,
        progress: bool = True,
    ) -> Flow[Fit]:
        """Order a fit and do not wait for it; several methods make several versions.

        A method is its name, or ``(name, parameters)``. ``wait`` waits for what it gives.
        """
        if (logits is None) != (labels is None) or (logits is None) == (dataset is None):
            raise TypeError("a fit takes logits and labels, or dataset=, and not both")
        if dataset is not None and (delete_after_fit or kind != "logits" or segments is not None):
            raise TypeError(
                "delete_after_fit=, kind= and segments= are for logits that are uploaded here"
            )
        checked_name(name)
        judging = _id_of(evaluation, "evaluation")
        if dataset is None:
            dataset = yield from DatasetCalls.upload.flow(
                self,
                logits,
                labels,
                kind=kind,
                segments=segments,
                delete_after_fit=delete_after_fit,
                progress=progress,
            )
        asked = [(one, {}) if isinstance(one, str) else one for one in methods]
        body = given(
            dataset=_id_of(dataset, "dataset"),
            methods=[{"method": method, "params": dict(params)} for method, params in asked],
            seed=seed,
            model=model,
            held_out=held_out,
            evaluation=judging,
            device=device,
            tags=tags,
            description=description,
        )
        place = ("calibrators", name, "fits")
        return (
            yield from self.ask_for(Fit, "POST", *place, body=body, headers=once(), repeatable=True)
        )

    @call
    def wait(
        self, fit: str | Fit, *, progress: bool = True, timeout: float | None = None
    ) -> Flow[Fit]:
        """Wait until a fit has succeeded; FitFailed, FitWasCancelled or WaitedTooLong if not."""
        if isinstance(fit, str):
            fit = yield from self.ask_for(Fit, "GET", "fits", fit)
        return (yield from self._finished(fit, progress=progress, timeout=timeout))

    @call
    def fits(
        self,
        *,
        calibrator: str | None = None,
        status: str | None = None,
        limit: int | None = None,
    ) -> Flow[list[Fit]]:
        """Fits, newest first."""
        return (
            yield from self.ask_for_all(
                Fit, "fits", limit=limit, calibrator=calibrator, status=status
            )
        )

    @call
    def get_fit(self, id: str) -> Flow[Fit]:
        """A fit and its progress."""
        return (yield from self.ask_for(Fit, "GET", "fits", id))

    @call
    def cancel(self, fit: str | Fit) -> Flow[Fit]:
        """Stop a fit: at once if it waits, within seconds if it runs."""
        id = fit if isinstance(fit, str) else fit.id
        return (yield from self.ask_for(Fit, "DELETE", "fits", id))

    def _finished(self, fit: Fit, *, progress: bool, timeout: float | None) -> Flow[Fit]:
        """The fit when it has succeeded; the service holds each answer until there is news."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        with FitProgress(fit, shown=progress) as bar:
            while not fit.is_finished:
                left = end - time.monotonic()
                if left <= 0:
                    raise WaitedTooLong(fit.id, timeout or 0.0)
                try:
                    fit = yield from self._looked_at(fit, left, calm=not progress)
                except BaseException as error:
                    error.add_note(f"fit {fit.id} goes on: {going_on(fit.id)}")
                    raise
                bar.show(fit)
        if fit.status == "cancelled":
            raise FitWasCancelled(fit.id)
        if fit.status != "succeeded":
            told = fit.error or {}
            raise FitFailed(str(told.get("code", "unknown")), str(told.get("message", "")), fit.id)
        return fit

    def _looked_at(self, fit: Fit, left: float, *, calm: bool) -> Flow[Fit]:
        """The fit when it is finished, or as it is a moment later."""
        look = min(CALM_LOOK_SECONDS if calm else LOOK_SECONDS, math.floor(min(left, 60)))
        if not look:  # the service counts in whole seconds
            yield Pause(left)
        return (
            yield from self.ask_for(
                Fit,
                "GET",
                "fits",
                fit.id,
                headers={"Prefer": f"wait={look}"} if look else {},
                timeout=look + min(ANSWER_SECONDS, self.connection.timeout),
                patience=min(left, self.connection.patience),
            )
        )


def _id_of(dataset: str | Dataset | None, name: str) -> str | None:
    if dataset is None or isinstance(dataset, str):
        return dataset
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"{name} must be what upload() gives, or its id, got {type(dataset).__name__}"
        )
    return dataset.id
