"""Two versions measured on the same rows: what the second changes, with intervals."""

from __future__ import annotations

import base64
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from calibrators import Report, archive
from service.core.access import Principal
from service.core.loading import named, stored_file
from service.core.serving import Maps
from service.core.task_process import TaskProcess
from service.errors import TooLarge, Unavailable
from service.storage.blobs import Blobs
from service.storage.records import Dataset

SECONDS = 120.0
MOST_ROWS = 100_000
MOST_LOADED = 40_000_000
KEPT = 64
MOST_WAITING = 16
MOST_WAITING_OF_ONE = 4


class Pair(NamedTuple):
    """Which versions of a calibrator."""

    calibrator: str
    first: int
    second: int


@dataclass(frozen=True)
class Comparison:
    """The first version is the report's "before", the second its "after", on the same rows.

    ``rows`` is how many the dataset has: the report may be on fewer, drawn evenly.
    """

    report: Report
    rows: int


class Comparisons:
    """Measured in a process of their own, one after the other; the last ones are remembered."""

    def __init__(self, blobs: Blobs, maps: Maps) -> None:
        self._blobs = blobs
        self._maps = maps
        self._kept: OrderedDict[tuple[str, Pair, str], Future[Comparison]] = OrderedDict()
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compare")
        self._process = TaskProcess()

    def ask(self, principal: Principal, pair: Pair, dataset: Dataset) -> Future[Comparison]:
        """The comparison on a dataset, begun now if nobody asked for it before.

        One that failed is told to whoever asks next, and begun anew for those after.
        """
        values = (dataset.rows or 0) * (dataset.classes or 0)
        if values > MOST_LOADED:
            raise TooLarge(
                "dataset_too_large",
                f"versions are compared on datasets of at most {MOST_LOADED:,} values (rows times "
                f"classes), this one has {values:,}",
                limit=MOST_LOADED,
            )
        key = (principal.workspace, pair, dataset.id)
        with self._lock:
            found = self._kept.pop(key, None)
            if found is None:
                self._check_waiting(principal.workspace)
                found = self._submit(principal, pair, dataset)
            if not _has_failed(found):
                self._kept[key] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found

    def close(self) -> None:
        """Begin no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._process.end()

    def _submit(self, principal: Principal, pair: Pair, dataset: Dataset) -> Future[Comparison]:
        try:
            return self._thread.submit(self._compare, principal, pair, dataset)
        except RuntimeError as error:
            raise Unavailable("ending", "the service is ending: try again") from error

    def _check_waiting(self, workspace: str) -> None:
        waiting = [key[0] for key, one in self._kept.items() if not one.done()]
        mine = waiting.count(workspace)
        if mine >= MOST_WAITING_OF_ONE or len(waiting) >= MOST_WAITING:
            raise Unavailable(
                "busy", f"{mine or len(waiting)} comparisons wait already: try again in a minute"
            )

    def _compare(self, principal: Principal, pair: Pair, dataset: Dataset) -> Comparison:
        maps = [
            archive.dump(self._maps.load(principal, pair.calibrator, str(number)).map)
            for number in (pair.first, pair.second)
        ]
        with stored_file(self._blobs, dataset, "dataset") as path, named("comparison"):
            answer = self._process.run(
                "compare",
                {
                    "path": str(path),
                    "format": dataset.format,
                    "kind": dataset.kind,
                    "dataset": dataset.id,
                    "most_rows": MOST_ROWS,
                    "maps": [base64.b64encode(one).decode() for one in maps],
                },
                SECONDS,
            )
        found = orjson.loads(answer)
        return Comparison(Report.from_dict(found["report"]), found["rows"])


def _has_failed(asked: Future[Comparison]) -> bool:
    return asked.cancelled() or (asked.done() and asked.exception() is not None)
