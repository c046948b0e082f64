"""What a worker does with a fit: fit and judge every method, then write all versions or none."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

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
from service.storage.blobs import Blobs, Unnamed
from service.storage.database import Database
from service.storage.records import Dataset, Fit, FitStatus
from service.storage.repository import new_id
from service.storage.store import Store

MAX_MAP_BYTES = 64 * MEGABYTE
MAX_FIT_BYTES = 128 * MEGABYTE

logger = logging.getLogger(__name__)


class Stop(Enum):
    """Why a running fit has to stop."""

    CANCEL = "cancel"  # somebody asked for it
    TIME_LIMIT = "time_limit"  # it took too long
    ABANDON = "abandon"  # the attempt is not (any longer) ours: nothing may be written


class Hooks(Protocol):
    """How a running fit and its surroundings speak with each other; both calls must be quick."""

    def progress(self, told: dict[str, Any]) -> None:
        """Hear how far the fit is."""

    def stop(self) -> Stop | None:
        """Say whether it has to stop."""


@dataclass(frozen=True)
class FitJob:
    """A fit that was taken for its next attempt, with all that the database knows of it."""

    fit: Fit
    dataset: Dataset | None
    evaluation: Dataset | None
    seconds_running: float


@dataclass(frozen=True)
class NewVersion:
    """A version whose blobs are written, and whose row is not."""

    id: str
    report: dict[str, Any]
    facts: dict[str, Any]


@dataclass(frozen=True)
class Ending:
    """How an attempt ended."""

    status: FitStatus
    versions: tuple[NewVersion, ...] = ()
    recommendation: Recommendation | None = None
    error: dict[str, str] | None = None
    unnamed: Unnamed | None = None


def job_of(store: Store, fit: Fit) -> FitJob:
    """Return a fit that was just taken, with its datasets."""
    evaluation = fit.evaluation and store.datasets.get(fit.workspace, fit.evaluation)
    return FitJob(
        fit,
        store.datasets.get(fit.workspace, fit.dataset),
        evaluation or None,
        store.fits.seconds_running(fit.id),
    )


def run(
    job: FitJob,
    blobs: Blobs,
    hooks: Hooks,
    *,
    device: str,
    time_limit: float,
    memory_limit: int | None = None,
    check_room: Callable[[int], None] = lambda _: None,
) -> Ending | None:
    """Fit and judge every method of the order, and write the blobs; None if it was abandoned.

    ``memory_limit`` is how many bytes a fit may need by its estimate; None for any number.
    ``check_room`` raises if there is no room for maps of so many bytes together.
    """
    watch = _Watch(hooks, time_limit - job.seconds_running)
    try:
        judged, size = _judged(job, blobs, hooks, watch, device, memory_limit)
        check_room(size)
        written, unnamed = _all_written(job, blobs, watch, judged)
        return Ending(FitStatus.SUCCEEDED, written, _recommended(judged), unnamed=unnamed)
    except FitCancelled:
        return None if watch.reason is None else ending_of(watch.reason, time_limit)
    except ServiceError as error:
        return failed(error.code, error.message)
    except Exception as error:  # whatever happens, the fit must get an end
        if _is_out_of_memory(error):
            return failed("out_of_memory", "the worker has not enough memory for this fit")
        logger.exception("fit %s failed", job.fit.id)
        return failed(
            "internal_error",
            f"the fit failed by a fault of the service; its log names {job.fit.id}",
        )


def conclude(
    database: Database, fit: Fit, ending: Ending, progress: dict[str, Any] | None = None
) -> Fit | None:
    """Write how an attempt ended, with its versions; None, and no change, if it runs no longer.

    It ends as failed if the blobs of its versions have waited too long for their rows.
    """
    with database.write() as store:
        if not store.fits.runs(fit.id, fit.attempt):
            return None
        ending = _in_time(ending)
        numbers = [
            store.calibrators.add_version(fit.calibrator, made.id, made.report, **made.facts).number
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
    """Recommend one of several versions; None if there is nothing to choose from."""
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
        if ending.unnamed is not None:
            ending.unnamed.check()
    except ServiceError as error:
        return failed(error.code, error.message)
    return ending


class _Watch:
    """A fit's ``cancel``: remembers why it said so."""

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
    job: FitJob, blobs: Blobs, hooks: Hooks, watch: _Watch, device: str, memory_limit: int | None
) -> tuple[list[tuple[CalibrationSet, Calibrator, Judged]], int]:
    """Return every method's map and report, and the bytes of all maps together."""
    recipes = _recipes(job, memory_limit)
    data = load(blobs, job.dataset, "dataset")
    evaluation = None
    if job.fit.evaluation is not None:
        evaluation = load(blobs, job.evaluation, "evaluation dataset")
    seed = job.fit.order["seed"]
    judged: list[tuple[CalibrationSet, Calibrator, Judged]] = []
    size = 0
    for done, recipe in enumerate(recipes):
        telling = _Telling(hooks, recipe.name, done, len(recipes))
        with named(recipe.name):
            found = fit_and_judge(
                recipe,
                data,
                evaluation=evaluation,
                held_out=job.fit.order["held_out"],
                seed=seed,
                device=device,
                progress=telling,
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


def _recipes(job: FitJob, memory_limit: int | None) -> list[Calibrator]:
    """Return the recipes of a fit; raise if one would need too much memory, before data is read."""
    order, found = job.fit.order, []
    for wanted in order["methods"]:
        with named(wanted["method"]):
            recipe = make_recipe(wanted["method"], wanted["params"], seed=order["seed"])
        if job.dataset is not None:
            check_memory(recipe, job.dataset, job.evaluation, order["held_out"], memory_limit)
        found.append(recipe)
    return found


class _Telling:
    """A fit's ``progress``: passes it on as plain JSON, with the method and its place."""

    def __init__(self, hooks: Hooks, method: str, done: int, methods: int) -> None:
        self._hooks = hooks
        self._place = {"method": method, "methods_done": done, "methods": methods}

    def __call__(self, step: int, total: int, loss: float | None) -> None:
        now = {"step": step, "total": total, "loss": loss}
        self._hooks.progress(to_plain({**self._place, **now}))


def _all_written(
    job: FitJob,
    blobs: Blobs,
    watch: _Watch,
    judged: list[tuple[CalibrationSet, Calibrator, Judged]],
) -> tuple[tuple[NewVersion, ...], Unnamed]:
    """Write the blobs of all versions; none of them stays if the fit is stopped or fails."""
    unnamed, written = Unnamed(blobs), []
    try:
        for one in judged:
            written.append(_written(job, unnamed, *one))
            if watch():
                raise FitCancelled
    except BaseException:
        unnamed.delete()
        raise
    return tuple(written), unnamed


def _written(
    job: FitJob, unnamed: Unnamed, data: CalibrationSet, recipe: Calibrator, judged: Judged
) -> NewVersion:
    """A version's blobs are written here; a row never names a blob that is not there."""
    assert job.dataset is not None  # noqa: S101 - data was loaded from it
    fit, order = job.fit, job.fit.order
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
    with ThreadPoolExecutor(len(new)) as threads:  # each waits for the store, or for its disk
        list(threads.map(unnamed.put, new, new.values()))
    known = fitted.fit_info.get("warnings", [])
    facts = {
        "method": recipe.name,
        "params": to_plain(recipe),
        "seed": order["seed"],
        "kind": data.kind,
        "classes": data.k,
        "model": order["model"],
        "dataset_sha256": job.dataset.sha256,
        "rows": data.n,
        "verdict": None if report.verdict is None else report.verdict.value,
        "verdict_sentence": report.verdict_sentence or None,
        "fit": fit.id,
        "fit_info": to_plain({**fitted.fit_info, "warnings": [*known, *warnings]}),
        "libraries": archive.describe(content)["libraries"],
        "map_sha256": sha256,
        "map_bytes": len(content),
        "blob_bytes": sum(map(len, new.values())),
        "onnx_sha256": None if onnx is None else _sha256(onnx),
        "judged_sha256": judged_sha256,
        "judged_data": judged.rows.data,
        "tags": order["tags"],
        "description": order["description"],
        "created_by": fit.created_by,
    }
    return NewVersion(id, report.to_dict(), facts)


def check_map_size(recipe: Calibrator, size: int) -> None:
    """Raise TooLarge for a map that would take too much memory wherever it is applied."""
    if size > MAX_MAP_BYTES:
        raise TooLarge(
            "map_too_large",
            f"the map of {recipe.name!r} has {size / MEGABYTE:.0f} MiB, at most "
            f"{MAX_MAP_BYTES / MEGABYTE:.0f} are kept: choose fewer bins or segments, or a method "
            "with fewer parameters",
            limit=MAX_MAP_BYTES,
        )


def check_maps_size(size: int) -> None:
    """Raise TooLarge for maps that a worker would have to hold at once, until all are judged."""
    if size > MAX_FIT_BYTES:
        raise TooLarge(
            "maps_too_large",
            f"the maps of this fit have over {MAX_FIT_BYTES / MEGABYTE:.0f} MiB together: fit "
            "methods with so many parameters one by one",
            limit=MAX_FIT_BYTES,
        )


def _onnx(fitted: CalibrationMap) -> tuple[bytes | None, list[dict[str, str]]]:
    """The map's ONNX form, or a warning why it has none."""
    try:
        return export(fitted), []
    except ExportError as error:
        return None, [{"code": error.code, "message": f"{NO_ONNX}: {error}"}]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def ending_of(reason: Stop, time_limit: float) -> Ending | None:
    """How a fit that was stopped ends; None if that is for others to say."""
    match reason:
        case Stop.CANCEL:
            return Ending(FitStatus.CANCELLED)
        case Stop.TIME_LIMIT:
            return failed(
                "time_limit",
                f"the fit took longer than {time_limit:g} seconds from its first start: "
                "send fewer rows or methods, or ask for a higher limit",
            )
    return None


def failed(code: str, message: str) -> Ending:
    """The ending of a fit that cannot succeed."""
    return Ending(FitStatus.FAILED, error={"code": code, "message": message})


def _is_out_of_memory(error: Exception) -> bool:
    """numpy and Python raise MemoryError, torch RuntimeErrors of its own."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "allocate memory" in str(error))
    )
