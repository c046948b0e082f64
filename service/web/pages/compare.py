"""The page that compares the reports of two versions, and both on the same rows."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any

import structlog
from fastapi import Query, Request, Response
from markupsafe import Markup

from calibrators import charts
from calibrators.comparison.key_figures import Figure, deciding_figures
from calibrators.report import html_tables
from calibrators.report.verdict import Verdict
from service.access.permissions import Principal, Scope
from service.comparisons.service import Comparison, Pair, chosen_dataset, default_dataset
from service.dependencies import Joined, Parts
from service.errors import Conflict, Invalid, ServiceError
from service.http.callers import Caller
from service.registry import service as versions
from service.registry.service import JudgedVersion
from service.storage.records import PRODUCTION, CalibratorRow, Dataset
from service.storage.store import Store
from service.web.components.layout import page, pages

router = pages()
_log = structlog.get_logger("calibrd.web")

DATASETS = 50

SUMMARIES = {
    Verdict.IMPROVED: "Version {second} is measurably better calibrated than {first}.",
    Verdict.TRADE_OFF: "Version {second} is better calibrated than {first}, at a cost.",
    Verdict.NO_MEASURABLE_CHANGE: "Neither version is measurably better.",
    Verdict.WORSE: "Version {second} is measurably worse than {first}.",
    Verdict.INSUFFICIENT_DATA: "Too few rows to tell.",
    Verdict.AT_CHANCE: "The labels may belong to other rows.",
}

Number = Annotated[int | None, Query(ge=1, lt=2**31)]


@dataclass(frozen=True)
class Measured:
    """The state of a comparison: a result or an error, or neither while it is running."""

    comparison: Comparison | None = None
    error: str = ""

    @classmethod
    def of(cls, future: Future[Comparison]) -> Measured:
        """Return the current state of a comparison."""
        if not future.done() or future.cancelled():
            return cls()
        error = future.exception()
        if error is None:
            return cls(future.result())
        if isinstance(error, ServiceError):
            return cls(error=error.message)
        _log.error("comparison_failed", exc_info=error)
        return cls(error="the comparison failed because of a bug in the service: see its log")

    @property
    def figures(self) -> list[Figure]:
        """The figures that decide which version is better."""
        return [] if self.comparison is None else deciding_figures(self.comparison.report)

    @property
    def is_busy(self) -> bool:
        """True if the comparison is still running."""
        return self.comparison is None and not self.error


@router.api_route("/calibrators/{name}/compare", methods=["GET", "HEAD"])
def compare_page(
    request: Request,
    joined: Joined,
    caller: Caller,
    name: str,
    a: Number = None,
    b: Number = None,
    dataset: Annotated[str, Query(max_length=80)] = "",
) -> Response:
    """Compare versions ``a`` and ``b``; callers with the fit scope may choose a dataset."""
    with joined.database.read() as store:
        calibrator = versions.calibrator_named(store, caller, name)
        first, second = (
            versions.judged(store, caller, name, number)
            for number in _chosen(store, calibrator, a, b)
        )
        pair = Pair(name, first.version, second.version)
        stored, data = _datasets(store, caller, pair, dataset)
    measured = Measured(error="no dataset was chosen")
    if (data is not None or pair.has_judged_rows) and request.method == "GET":
        measured = measure(joined, caller, pair, data)
    values = {
        "name": name,
        "sides": (first, second),
        "newest": calibrator.last_version,
        "datasets": stored,
        "dataset": data,
        "has_judged_rows": pair.has_judged_rows,
        "measured": measured,
        "summary": _summary(measured.comparison, first, second),
        "chart": _chart(measured.comparison, first, second),
        "segments": _segments(measured.comparison),
    }
    return page(request, "compare.html", values)


def _chosen(
    store: Store, calibrator: CalibratorRow, a: int | None, b: int | None
) -> tuple[int, int]:
    """Return the versions to compare: by default production (or an adjacent one) and the newest."""
    production = store.aliases.get(calibrator.id, PRODUCTION)
    second = b or calibrator.last_version
    likely = [production.version if production else 0, second - 1, second + 1]
    numbers = range(1, calibrator.last_version + 1)
    first = a or next((one for one in likely if one in numbers and one != second), None)
    if first is None:
        raise Conflict(
            "no_two_versions", f"{calibrator.name} does not have two versions to compare"
        )
    if first == second:
        raise Invalid("same_version", f"choose two different versions: both are {first}")
    return first, second


def _datasets(
    store: Store, caller: Principal, pair: Pair, id: str
) -> tuple[list[Dataset], Dataset | None]:
    """Return the datasets to choose from, and the one to compare on (None: judged rows)."""
    if id:
        data: Dataset | None = chosen_dataset(store, caller, pair, id)
    elif not caller.may(Scope.FIT):
        return [], None
    else:
        data = None if pair.has_judged_rows else default_dataset(store, caller, pair)
    version = pair.second
    stored = store.datasets.like(caller.workspace, version.kind, version.classes, DATASETS)
    if data is not None and data not in stored:
        stored = [data, *stored]
    return stored, data


def measure(joined: Parts, caller: Principal, pair: Pair, data: Dataset | None = None) -> Measured:
    """Start a comparison, on common judged rows or a dataset, and return its state."""
    try:
        return Measured.of(joined.comparisons.start(caller, pair, data))
    except ServiceError as error:
        return Measured(error=error.message)


def _summary(comparison: Comparison | None, first: JudgedVersion, second: JudgedVersion) -> str:
    """Return a sentence that states which version is better, according to the verdict."""
    verdict = None if comparison is None else comparison.report.verdict
    summary = "" if verdict is None else SUMMARIES[verdict]
    return summary.format(first=f"version {first.version.number}", second=second.version.number)


def _chart(
    comparison: Comparison | None, first: JudgedVersion, second: JudgedVersion
) -> dict[str, Any] | None:
    """Return the reliability diagrams of both versions on the same rows."""
    if comparison is None:
        return None
    titles = {"before": first.title, "after": second.title}
    return charts.reliability(comparison.report, titles=titles)


def _segments(comparison: Comparison | None) -> Markup:
    """Return the table of segments, with escaped names."""
    found = "" if comparison is None else html_tables.segments(comparison.report)
    return Markup(found)  # noqa: S704
