"""Compare two versions on the same rows: the effect of switching to the second, with intervals.

Versions are compared on the held-out rows that both were judged on, or on a dataset. There is no
verdict if either version was fitted on these rows.
"""

from __future__ import annotations

import base64
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from calibrators import CalibrationError, Report
from calibrators.comparison.judged_rows import JudgedRows
from service.access.permissions import Principal, Scope
from service.concurrency.task_process import TASK_FAILED, TaskProcess
from service.datasets.service import stored_file
from service.errors import Conflict, NotFound, ServiceError, TooLarge, Unavailable
from service.http.callers import check_scope
from service.registry.service import JudgedVersion
from service.storage.blob_keys import judged_key, map_key
from service.storage.blobs import Blobs
from service.storage.records import Dataset, Version
from service.storage.store import Store

SECONDS = 60.0
PROCESSES = 2  # the second is started when two workspaces compare at once
MAX_ROWS = 100_000
MAX_READ = 40_000_000
MAX_LOADED = 4_000_000  # of probabilities, which are loaded whole
MAX_KEPT = 64
MAX_WAITING = 16
MAX_WAITING_OF_ONE = 4


class Pair(NamedTuple):
    """Two versions of a calibrator to compare."""

    calibrator: str
    first: Version
    second: Version

    @property
    def key(self) -> tuple[str, int, int]:
        """The identity of the pair within a workspace."""
        return self.calibrator, self.first.number, self.second.number

    @property
    def has_judged_rows(self) -> bool:
        """True if both versions have stored judged rows from the same data."""
        return self.first.judged_data is not None and (
            self.first.judged_data == self.second.judged_data
        )


@dataclass(frozen=True)
class Comparison:
    """A report whose "before" is the first version and "after" the second, on the same rows.

    ``dataset`` is None for rows that both versions were judged on; otherwise ``rows`` is the number
    of rows in the dataset, and the report may cover a uniform sample of them. ``no_verdict`` states
    why the report has no verdict. ``content`` holds the response body once it has been encoded.
    """

    report: Report
    rows: int
    dataset: str | None = None
    no_verdict: str = ""
    content: list[bytes] = field(default_factory=list, compare=False, repr=False)


class Comparisons:
    """Cached comparisons, run in separate processes, one at a time per workspace."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._cache: OrderedDict[tuple[str, ...], Future[Comparison]] = OrderedDict()
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[_Waiting]] = {}
        self._running: set[str] = set()
        self._threads = ThreadPoolExecutor(PROCESSES, thread_name_prefix="compare")
        self._processes = [TaskProcess() for _ in range(PROCESSES)]
        self._idle = list(self._processes)

    def start(
        self, principal: Principal, pair: Pair, dataset: Dataset | None
    ) -> Future[Comparison]:
        """Return the comparison on a dataset, or on the common judged rows if ``dataset`` is None.

        The comparison is started unless it is cached. A failed comparison is returned only once;
        the next call starts it again.
        """
        if dataset is not None:
            _check_size(dataset)
        key = (principal.workspace, *map(str, pair.key), "" if dataset is None else dataset.id)
        with self._lock:
            found = self._cache.pop(key, None)
            if found is None:
                self._check_waiting(principal.workspace)
                found = self._submit(principal, pair, dataset)
            if not _has_failed(found):
                self._cache[key] = found
            self._evict()
        return found

    def _evict(self) -> None:
        """Evict the oldest finished comparisons of the workspaces with the most cached ones."""
        done = [key for key, one in self._cache.items() if one.done()]
        counts = Counter(workspace for workspace, *_ in done)
        for _ in range(len(done) - MAX_KEPT):
            (largest, _count), *_others = counts.most_common(1)
            oldest = next(key for key in done if key[0] == largest)
            done.remove(oldest)
            counts[largest] -= 1
            del self._cache[oldest]

    def close(self) -> None:
        """Cancel waiting comparisons and end the processes."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for one in self._processes:
            one.end()
        with self._lock:
            for queue in self._waiting.values():
                for waiting in queue:
                    waiting.future.cancel()

    def _submit(
        self, principal: Principal, pair: Pair, dataset: Dataset | None
    ) -> Future[Comparison]:
        call = (
            partial(self._compare_judged, principal, pair)
            if dataset is None
            else partial(self._compare, principal, pair, dataset)
        )
        try:
            self._threads.submit(self._run_next)
        except RuntimeError as error:
            raise Unavailable("shutting_down", "the service is shutting down; try again") from error
        waiting = _Waiting(Future(), call)
        self._waiting.setdefault(principal.workspace, deque()).append(waiting)
        return waiting.future

    def _run_next(self) -> None:
        """Run the first waiting comparison of the next workspace that has none running."""
        with self._lock:
            workspace = next((one for one in self._waiting if one not in self._running), None)
            if workspace is None:
                return  # it is submitted again when a running comparison ends
            queue = self._waiting.pop(workspace)
            waiting = queue.popleft()
            if queue:
                self._waiting[workspace] = queue
            self._running.add(workspace)
            process = self._idle.pop()
        try:
            waiting.run(process)
        finally:
            with self._lock:
                self._running.discard(workspace)
                self._idle.append(process)
            with suppress(RuntimeError):  # the service is shutting down
                self._threads.submit(self._run_next)

    def _check_waiting(self, workspace: str) -> None:
        waiting = [key[0] for key, one in self._cache.items() if not one.done()]
        mine = waiting.count(workspace)
        if mine >= MAX_WAITING_OF_ONE or len(waiting) >= MAX_WAITING:
            count = mine if mine >= MAX_WAITING_OF_ONE else len(waiting)
            raise Unavailable("busy", f"{count} comparisons are waiting: try again in a minute")

    def _compare_judged(self, principal: Principal, pair: Pair, process: TaskProcess) -> Comparison:
        rows = [_judged_bytes(self._blobs, principal, one) for one in (pair.first, pair.second)]
        packed = {"rows": [base64.b64encode(one).decode() for one in rows]}
        answer = _run(process, "compare_judged", packed)
        report = Report.from_dict(orjson.loads(answer)["report"])
        return Comparison(report, report.n)

    def _compare(
        self, principal: Principal, pair: Pair, dataset: Dataset, process: TaskProcess
    ) -> Comparison:
        sides = pair.first, pair.second
        with ExitStack() as opened:
            path = opened.enter_context(stored_file(self._blobs, dataset, "dataset"))
            maps = [opened.enter_context(self._map_file(principal, one)) for one in sides]
            request = {
                "path": str(path),
                "format": dataset.format,
                "kind": dataset.kind,
                "dataset": dataset.id,
                "most_rows": MAX_ROWS,
                "maps": [str(one) for one in maps],
            }
            answer = _run(process, "compare", request)
        found = orjson.loads(answer)
        report = Report.from_dict(found["report"])
        seen = [
            one.number for one in sides if self._has_seen(principal, one, dataset, found["data"])
        ]
        if seen:
            report = replace(report, verdict=None)
        return Comparison(report, found["rows"], dataset.id, _why_no_verdict(seen))

    def _map_file(self, principal: Principal, version: Version) -> AbstractContextManager[Path]:
        """Provide the map of a version as a file that the task process can read."""
        key = map_key(principal.workspace, version.id, version.map_sha256)
        return self._blobs.file(key, version.map_sha256)

    def _has_seen(
        self, principal: Principal, version: Version, dataset: Dataset, fingerprint: str
    ) -> bool:
        """Return whether a version was fitted on these rows, in this or another format."""
        if version.dataset_sha256 == dataset.sha256:
            return True
        rows = judged_rows(self._blobs, principal, version)
        return rows is not None and rows.fitted_on == fingerprint


def judged_rows(blobs: Blobs, principal: Principal, version: Version) -> JudgedRows | None:
    """Return the rows that a version was judged on; None if they are missing or damaged."""
    if version.judged_sha256 is None:
        return None
    try:
        return JudgedRows.load(_judged_bytes(blobs, principal, version))
    except (ServiceError, CalibrationError):
        return None


def default_dataset(store: Store, principal: Principal, pair: Pair) -> Dataset | None:
    """Return an evaluation dataset of either fit that neither version was fitted on, or None."""
    for one in (pair.second, pair.first):
        fit = None if one.fit is None else store.fits.get(one.fit, principal.workspace)
        if fit is None or fit.evaluation is None:
            continue
        found = store.datasets.get(principal.workspace, fit.evaluation)
        if found is not None and suits(found, pair.second) and not was_fitted_on(pair, found):
            return found
    return None


def suits(dataset: Dataset, version: Version) -> bool:
    """Return whether a version can be applied to a dataset."""
    return dataset.is_ready and (dataset.kind, dataset.classes) == (version.kind, version.classes)


def was_fitted_on(pair: Pair, dataset: Dataset) -> bool:
    """Return whether either version was fitted on a dataset with the same bytes."""
    return any(JudgedVersion(one, None).has_seen(dataset) for one in (pair.first, pair.second))


def no_common_rows(pair: Pair) -> Conflict:
    """Return the error for versions that have no judged rows in common."""
    one = next((one for one in pair[1:] if one.judged_sha256 is None), None)
    why = (
        "they were judged on different data"
        if one is None
        else f"version {one.number} has no judged rows"
    )
    return Conflict(
        "no_common_rows",
        f"versions {pair.first.number} and {pair.second.number} have no judged rows in common, "
        f"because {why}: choose a dataset that neither was fitted on",
    )


@dataclass(frozen=True)
class _Waiting:
    """A comparison waiting for a process."""

    future: Future[Comparison]
    call: Callable[[TaskProcess], Comparison]

    def run(self, process: TaskProcess) -> None:
        """Run the comparison and set the result of its future."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.call(process))
        except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
            self.future.set_exception(error)


def _run(process: TaskProcess, task: str, request: dict[str, Any]) -> bytes:
    """Return the result of a task; raise Conflict if these versions cannot be compared."""
    try:
        return process.run(task, request, SECONDS)
    except ServiceError as error:
        if type(error) is not ServiceError or error.code == TASK_FAILED:
            raise
        raise Conflict(error.code, error.message) from error


def _check_size(dataset: Dataset) -> None:
    values = (dataset.rows or 0) * (dataset.classes or 0)
    limit = MAX_READ if dataset.kind == "logits" else MAX_LOADED
    if values > limit:
        raise TooLarge(
            "dataset_too_large",
            f"versions can be compared on datasets of at most {limit:,} {dataset.kind} (rows times "
            f"classes), got {values:,}",
            limit=limit,
        )


def _judged_bytes(blobs: Blobs, principal: Principal, version: Version) -> bytes:
    sha256 = version.judged_sha256 or ""
    return blobs.get(judged_key(principal.workspace, version.id, sha256), sha256)


def _why_no_verdict(seen: list[int]) -> str:
    if not seen:
        return ""
    if len(seen) > 1:
        return "both versions were fitted on these rows, so their figures are optimistic"
    return f"version {seen[0]} was fitted on these rows, so its figures are optimistic"


def _has_failed(future: Future[Comparison]) -> bool:
    return future.cancelled() or (future.done() and future.exception() is not None)


def chosen_dataset(store: Store, caller: Principal, pair: Pair, id: str) -> Dataset:
    """Return the dataset that the caller chose; raise NotFound if the versions cannot use it."""
    check_scope(caller, Scope.FIT)
    found = store.datasets.get(caller.workspace, id)
    if found is None or not suits(found, pair.second):
        raise NotFound(
            "no_such_dataset", "there is no such dataset, or these versions cannot be applied to it"
        )
    return found
