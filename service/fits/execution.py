"""Run a fit: fit and judge every method, then write all versions or none."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import structlog

from calibrators import CalibrationMap, CalibrationSet, Calibrator, archive, fit_and_judge
from calibrators.comparison.recommendation import Candidate, Recommendation, recommend
from calibrators.errors import ExportError, FitCancelled
from calibrators.export.onnx import export
from calibrators.fitting.evaluation import Judged
from calibrators.registry import make_recipe
from calibrators.report.json_form import to_plain
from service.datasets.service import load, named
from service.errors import ServiceError, TooLarge
from service.fits.service import check_memory
from service.registry.service import NO_ONNX
from service.settings import MEGABYTE
from service.storage.blob_keys import judged_key, map_key, onnx_key
from service.storage.blobs import Blobs, PendingBlobs
from service.storage.database import Database
from service.storage.records import Dataset, Fit, FitStatus
from service.storage.repository import JsonText, as_json, new_id
from service.storage.store import Store

MAX_MAP_BYTES = 64 * MEGABYTE
MAX_FIT_BYTES = 128 * MEGABYTE
MAX_DOCUMENT_BYTES = 16 * MEGABYTE

_log = structlog.get_logger("calibrd.fits")


class Stop(Enum):
    """The reason a running fit must stop."""

    CANCEL = "cancel"  # a caller cancelled it
    TIME_LIMIT = "time_limit"
    ABANDON = "abandon"  # this worker has lost the attempt, and must not write anything


class Hooks(Protocol):
    """Callbacks of a running fit; each must return quickly."""

    def progress(self, current: dict[str, Any]) -> None:
        """Receive the current progress of the fit."""

    def stop(self) -> Stop | None:
        """Return the reason the fit must stop, or None."""


@dataclass(frozen=True)
class FitAttempt:
    """A fit claimed for its next attempt, with its datasets."""

    fit: Fit
    dataset: Dataset | None
    evaluation: Dataset | None
    seconds_running: float


@dataclass(frozen=True)
class NewVersion:
    """A version whose blobs are written but whose row is not.

    ``report`` and ``fit_info`` are already text, so no other writer waits for serialisation.
    """

    id: str
    report: JsonText
    fit_info: JsonText
    facts: dict[str, Any]


@dataclass(frozen=True)
class Ending:
    """The outcome of an attempt."""

    status: FitStatus
    versions: tuple[NewVersion, ...] = ()
    recommendation: Recommendation | None = None
    error: dict[str, str] | None = None
    pending: PendingBlobs | None = None


def attempt_of(store: Store, fit: Fit) -> FitAttempt:
    """Return a fit that was just claimed, with its datasets."""
    evaluation = fit.evaluation and store.datasets.get(fit.workspace, fit.evaluation)
    return FitAttempt(
        fit,
        store.datasets.get(fit.workspace, fit.dataset),
        evaluation or None,
        store.fits.seconds_running(fit.id),
    )


def run(
    attempt: FitAttempt,
    blobs: Blobs,
    hooks: Hooks,
    *,
    device: str,
    time_limit: float,
    memory_limit: int | None = None,
    check_room: Callable[[int], None] = lambda _: None,
) -> Ending | None:
    """Fit and judge every method of a fit and write the blobs; return None if it was abandoned.

    ``memory_limit`` limits the estimated memory of the fit in bytes; None means no limit.
    ``check_room`` is called with the total size of the maps, and raises if there is no room.
    """
    watch = _Watch(hooks, time_limit - attempt.seconds_running)
    try:
        judged, size = _judged(attempt, blobs, hooks, watch, device, memory_limit)
        check_room(size)
        written, pending = _all_written(attempt, blobs, watch, judged)
        return Ending(FitStatus.SUCCEEDED, written, _recommended(judged), pending=pending)
    except FitCancelled:
        return None if watch.reason is None else ending_of(watch.reason, time_limit)
    except ServiceError as error:
        return failed(error.code, error.message)
    except Exception as error:  # noqa: BLE001 - whatever happens, the fit must end
        if _is_out_of_memory(error):
            return failed("out_of_memory", "the worker does not have enough memory for this fit")
        _log.exception("fit_failed", fit=attempt.fit.id)
        return failed(
            "internal_error",
            f"the fit failed because of a bug in the service: search its log for {attempt.fit.id}",
        )


def conclude(
    database: Database, fit: Fit, ending: Ending, progress: dict[str, Any] | None = None
) -> Fit | None:
    """Write the outcome and versions of an attempt; return None if the attempt has ended already.

    The fit fails if its blobs were written so long ago that the sweep may have deleted them.
    """
    with database.write() as store:
        if not store.fits.runs(fit.id, fit.attempt):
            return None
        ending = _in_time(ending)
        numbers = [
            store.calibrators.add_version(
                fit.calibrator, made.id, made.report, fit_info=made.fit_info, **made.facts
            ).number
            for made in ending.versions
        ]
        facts = {
            "versions": numbers,
            "recommendation": _document(ending.recommendation, numbers),
            "error": ending.error,
            "progress": progress,
        }
        return store.fits.finish(fit.id, fit.attempt, ending.status, **facts)


def _document(found: Recommendation | None, numbers: list[int]) -> dict[str, Any] | None:
    if found is None or not numbers:
        return None
    version = None if found.place is None else numbers[found.place]
    return {"version": version, "reason": found.reason}


def _recommended(
    judged: list[tuple[CalibrationSet, Calibrator, Judged]],
) -> Recommendation | None:
    """Recommend one of several versions; return None if there are fewer than two."""
    if len(judged) < 2:
        return None
    return recommend(
        [
            Candidate(recipe.name, found.map.method, found.report, found.rows)
            for _, recipe, found in judged
        ]
    )


def _in_time(ending: Ending) -> Ending:
    try:
        if ending.pending is not None:
            ending.pending.check()
    except ServiceError as error:
        return failed(error.code, error.message)
    return ending


class _Watch:
    """The ``cancel`` callback of a fit; ``reason`` states why it returned True."""

    def __init__(self, hooks: Hooks, seconds: float) -> None:
        self.reason: Stop | None = None
        self._hooks = hooks
        self._deadline = time.monotonic() + seconds

    def __call__(self) -> bool:
        if self.reason is None:
            self.reason = self._hooks.stop()
        if self.reason is None and time.monotonic() > self._deadline:
            self.reason = Stop.TIME_LIMIT
        return self.reason is not None


def _judged(
    attempt: FitAttempt,
    blobs: Blobs,
    hooks: Hooks,
    watch: _Watch,
    device: str,
    memory_limit: int | None,
) -> tuple[list[tuple[CalibrationSet, Calibrator, Judged]], int]:
    """Return every method's map and report, and the total size of the maps in bytes."""
    recipes = _recipes(attempt, memory_limit)
    needed = any(one.method_needing_features for one in recipes)
    data = load(blobs, attempt.dataset, "dataset", with_features=needed)
    evaluation = None
    if attempt.fit.evaluation is not None:
        evaluation = load(blobs, attempt.evaluation, "evaluation dataset", with_features=needed)
    seed = attempt.fit.order["seed"]
    judged: list[tuple[CalibrationSet, Calibrator, Judged]] = []
    size = 0
    for done, recipe in enumerate(recipes):
        progress = _MethodProgress(hooks, recipe.name, done, len(recipes))
        with named(recipe.name):
            found = fit_and_judge(
                recipe,
                data,
                evaluation=evaluation,
                held_out=attempt.fit.order["held_out"],
                seed=seed,
                device=device,
                progress=progress,
                cancel=watch,
            )
        judged.append((data, recipe, found))
        own = len(archive.dump(found.map))
        size += own
        check_map_size(recipe, own)
        check_maps_size(size)
    if watch():
        raise FitCancelled
    return judged, size


def _recipes(attempt: FitAttempt, memory_limit: int | None) -> list[Calibrator]:
    """Return the recipes of a fit; raise before reading data if one would need too much memory."""
    spec, found = attempt.fit.order, []
    for one in spec["methods"]:
        with named(one["method"]):
            recipe = make_recipe(one["method"], one["params"], seed=spec["seed"])
        if attempt.dataset is not None:
            held_out = spec["held_out"]
            check_memory(recipe, attempt.dataset, attempt.evaluation, held_out, memory_limit)
        found.append(recipe)
    return found


class _MethodProgress:
    """The ``progress`` callback of a method; adds the method's name and position in the fit."""

    def __init__(self, hooks: Hooks, method: str, done: int, methods: int) -> None:
        self._hooks = hooks
        self._place = {"method": method, "methods_done": done, "methods": methods}

    def __call__(self, step: int, total: int, loss: float | None) -> None:
        now = {"step": step, "total": total, "loss": loss}
        self._hooks.progress(to_plain({**self._place, **now}))


def _all_written(
    attempt: FitAttempt,
    blobs: Blobs,
    watch: _Watch,
    judged: list[tuple[CalibrationSet, Calibrator, Judged]],
) -> tuple[tuple[NewVersion, ...], PendingBlobs]:
    """Write the blobs of all versions; delete them if the fit is stopped or fails."""
    pending, written = PendingBlobs(blobs), []
    try:
        for one in judged:
            written.append(_written(attempt, pending, *one))
            check_documents(written)
            if watch():
                raise FitCancelled
    except BaseException:
        pending.delete()
        raise
    return tuple(written), pending


def _written(
    attempt: FitAttempt,
    pending: PendingBlobs,
    data: CalibrationSet,
    recipe: Calibrator,
    judged: Judged,
) -> NewVersion:
    """Write the blobs of a version before its row, so that no row refers to a missing blob."""
    assert attempt.dataset is not None  # noqa: S101 - data was loaded from it
    fit, spec = attempt.fit, attempt.fit.order
    fitted, report = judged
    id, content, rows = new_id("ver"), archive.dump(fitted), judged.rows.dump()
    onnx, warnings = _onnx(fitted)
    sha256, judged_sha256 = _sha256(content), _sha256(rows)
    new = {
        map_key(fit.workspace, id, sha256): content,
        judged_key(fit.workspace, id, judged_sha256): rows,
    }
    if onnx is not None:
        new[onnx_key(fit.workspace, id, _sha256(onnx))] = onnx
    with ThreadPoolExecutor(len(new)) as threads:  # each waits for the network or the disk
        list(threads.map(pending.put, new, new.values()))
    known = fitted.fit_info.get("warnings", [])
    facts = {
        "method": recipe.name,
        "params": to_plain(recipe),
        "seed": spec["seed"],
        "kind": data.kind,
        "classes": data.k,
        "model": spec["model"],
        "dataset_sha256": attempt.dataset.sha256,
        "rows": data.n,
        "verdict": None if report.verdict is None else report.verdict.value,
        "verdict_sentence": report.verdict_sentence or None,
        "fit": fit.id,
        "libraries": archive.describe(content)["libraries"],
        "map_sha256": sha256,
        "map_bytes": len(content),
        "blob_bytes": sum(map(len, new.values())),
        "onnx_sha256": None if onnx is None else _sha256(onnx),
        "judged_sha256": judged_sha256,
        "judged_data": judged.rows.data,
        "tags": spec["tags"],
        "description": spec["description"],
        "created_by": fit.created_by,
    }
    fit_info = to_plain({**fitted.fit_info, "warnings": [*known, *warnings]})
    return NewVersion(id, JsonText(as_json(report.to_dict())), JsonText(as_json(fit_info)), facts)


def check_map_size(recipe: Calibrator, size: int) -> None:
    """Raise TooLarge if a map would take too much memory when applied."""
    if size > MAX_MAP_BYTES:
        raise TooLarge(
            "map_too_large",
            f"the map of {recipe.name!r} takes {size / MEGABYTE:.0f} MiB, but the limit is "
            f"{MAX_MAP_BYTES / MEGABYTE:.0f} MiB: choose fewer bins or segments, or a method "
            "with fewer parameters",
            limit=MAX_MAP_BYTES,
        )


def check_maps_size(size: int) -> None:
    """Raise TooLarge if the maps of a fit, all held in memory at once, are too large."""
    if size > MAX_FIT_BYTES:
        raise TooLarge(
            "maps_too_large",
            f"the maps of this fit take more than {MAX_FIT_BYTES / MEGABYTE:.0f} MiB in total: "
            "fit these methods one at a time",
            limit=MAX_FIT_BYTES,
        )


def check_documents(versions: Sequence[NewVersion]) -> None:
    """Raise TooLarge if the reports of a fit, all written at once, are too large."""
    if sum(len(one.report) + len(one.fit_info) for one in versions) > MAX_DOCUMENT_BYTES:
        raise TooLarge(
            "reports_too_large",
            f"the reports of this fit take more than {MAX_DOCUMENT_BYTES / MEGABYTE:.0f} MiB in "
            "total: use fewer segments or shorter segment names, or fit fewer methods at once",
            limit=MAX_DOCUMENT_BYTES,
        )


def _onnx(fitted: CalibrationMap) -> tuple[bytes | None, list[dict[str, str]]]:
    """Return the map as an ONNX model, or a warning that explains why it cannot be exported."""
    try:
        return export(fitted), []
    except ExportError as error:
        return None, [{"code": error.code, "message": f"{NO_ONNX}: {error}"}]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def ending_of(reason: Stop, time_limit: float) -> Ending | None:
    """Return the outcome of a stopped fit; None if another worker has taken it over."""
    match reason:
        case Stop.CANCEL:
            return Ending(FitStatus.CANCELLED)
        case Stop.TIME_LIMIT:
            return failed(
                "time_limit",
                f"the fit did not finish within {time_limit:g} seconds of its first start: "
                "send fewer rows or methods, or raise fit_seconds",
            )
    return None


def failed(code: str, message: str) -> Ending:
    """Return the outcome of a failed fit."""
    return Ending(FitStatus.FAILED, error={"code": code, "message": message})


def _is_out_of_memory(error: Exception) -> bool:
    """Return True if memory ran out, for which torch raises its own RuntimeErrors."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "allocate memory" in str(error))
    )
