"""Two versions measured on the same rows: what the second changes, with intervals."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from calibrators import CalibrationSet, Report, evaluate
from calibrators.softmax import margins
from service.core.access import Principal
from service.core.loading import load, named
from service.core.serving import Maps
from service.errors import TooLarge, Unavailable
from service.storage.blobs import Blobs
from service.storage.records import Dataset

MOST_ROWS = 100_000
MOST_VALUES = 20_000_000
MOST_LOADED = 200_000_000
KEPT = 64
MOST_WAITING = 16


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
    """Measured on a thread of their own, one after the other; the last ones are remembered."""

    def __init__(self, blobs: Blobs, maps: Maps) -> None:
        self._blobs = blobs
        self._maps = maps
        self._kept: OrderedDict[tuple[str, Pair, str], Future[Comparison]] = OrderedDict()
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compare")

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
                self._check_waiting()
                found = self._submit(principal, pair, dataset)
            if not _has_failed(found):
                self._kept[key] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found

    def close(self) -> None:
        """Begin no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _submit(self, principal: Principal, pair: Pair, dataset: Dataset) -> Future[Comparison]:
        try:
            return self._thread.submit(self._compare, principal, pair, dataset)
        except RuntimeError as error:
            raise Unavailable("ending", "the service is ending: try again") from error

    def _check_waiting(self) -> None:
        waiting = sum(not one.done() for one in self._kept.values())
        if waiting >= MOST_WAITING:
            raise Unavailable("busy", f"{waiting} comparisons wait already: try again in a minute")

    def _compare(self, principal: Principal, pair: Pair, dataset: Dataset) -> Comparison:
        data = load(self._blobs, dataset, "dataset")
        rows = data.n
        data = _at_most(data)
        with named("comparison"):
            first, second = (
                self._maps.load(principal, pair.calibrator, str(number)).map.apply_set(data)
                for number in (pair.first, pair.second)
            )
            report = evaluate(
                second,
                data.labels,
                before=first,
                margin=margins(data.logits),
                groups=data.groups,
                judged_on=f"{data.n:,} rows of the dataset {dataset.id}",
            )
        return Comparison(report, rows)


def _has_failed(asked: Future[Comparison]) -> bool:
    return asked.cancelled() or (asked.done() and asked.exception() is not None)


def _at_most(data: CalibrationSet) -> CalibrationSet:
    """The set, or as many of its rows as can be measured in seconds, drawn with a fixed seed."""
    most = max(1, min(MOST_ROWS, MOST_VALUES // data.k))
    if data.n <= most:
        return data
    chosen = np.random.default_rng(0).choice(data.n, most, replace=False)
    return data.take(np.sort(chosen))
