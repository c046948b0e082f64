"""The page that compares two versions of a calibrator: as judged, and on the same rows."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any

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
logger = logging.getLogger(__name__)

DATASETS = 50

SUMMARIES = {
    Verdict.IMPROVED: "Version {second} is measurably better calibrated than {first}.",
    Verdict.TRADE_OFF: "Version {second} is better calibrated than {first}, at a price.",
    Verdict.NO_MEASURABLE_CHANGE: "Neither is measurably better.",
    Verdict.WORSE: "Version {second} is measurably worse than {first}.",
    Verdict.INSUFFICIENT_DATA: "Too few rows to tell.",
}

Number = Annotated[int | None, Query(ge=1, lt=2**31)]


@dataclass(frozen=True)
class Measured:
    """How far a comparison is: what it found, why it failed, or neither while it goes on."""

    comparison: Comparison | None = None
    trouble: str = ""

    @classmethod
    def of(cls, asked: Future[Comparison]) -> Measured:
        """As far as it is now."""
        if not asked.done() or asked.cancelled():
            return cls()
        error = asked.exception()
        if error is None:
            return cls(asked.result())
        if isinstance(error, ServiceError):
            return cls(trouble=error.message)
        logger.error("a comparison failed", exc_info=error)
        return cls(trouble="the comparison failed by a fault of the service; its log has more")

    @property
    def figures(self) -> list[Figure]:
        """The figures that a decision rests on."""
        return [] if self.comparison is None else deciding_figures(self.comparison.report)

    @property
    def is_busy(self) -> bool:
        """Whether it is worth to look again."""
        return self.comparison is None and not self.trouble


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
    """Version ``a`` beside version ``b``; on the rows of a dataset for those who may fit."""
    with joined.database.read() as store:
        calibrator = versions.calibrator_named(store, caller, name)
        first, second = (
            versions.judged(store, caller, name, number)
            for number in _chosen(store, calibrator, a, b)
        )
        pair = Pair(name, first.version, second.version)
        stored, data = _datasets(store, caller, pair, dataset)
    measured = Measured(trouble="nothing was chosen")
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
    """The numbers asked for; else the newest, and what is in production or one beside it."""
    production = store.aliases.get(calibrator.id, PRODUCTION)
    second = b or calibrator.last_version
    likely = [production.version if production else 0, second - 1, second + 1]
    numbers = range(1, calibrator.last_version + 1)
    first = a or next((one for one in likely if one in numbers and one != second), None)
    if first is None:
        raise Conflict("no_two_versions", f"{calibrator.name} has no two versions to compare yet")
    if first == second:
        raise Invalid("same_version", f"choose two versions: both are {first}")
    return first, second


def _datasets(
    store: Store, caller: Principal, pair: Pair, asked: str
) -> tuple[list[Dataset], Dataset | None]:
    """Those to choose from, and the one to measure on; None for common judged rows, or nothing."""
    if asked:
        data: Dataset | None = chosen_dataset(store, caller, pair, asked)
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
    """Begin a comparison, on common judged rows or a dataset, and return how far it is."""
    try:
        return Measured.of(joined.comparisons.ask(caller, pair, data))
    except ServiceError as error:
        return Measured(trouble=error.message)


def _summary(comparison: Comparison | None, first: JudgedVersion, second: JudgedVersion) -> str:
    """Return which of the two is better, by the verdict."""
    verdict = None if comparison is None else comparison.report.verdict
    said = "" if verdict is None else SUMMARIES[verdict]
    return said.format(first=f"version {first.version.number}", second=second.version.number)


def _chart(
    comparison: Comparison | None, first: JudgedVersion, second: JudgedVersion
) -> dict[str, Any] | None:
    """The reliability diagrams of both on the same rows."""
    if comparison is None:
        return None
    titles = {"before": first.title, "after": second.title}
    return charts.reliability(comparison.report, titles=titles)


def _segments(comparison: Comparison | None) -> Markup:
    """The table of the segments, which escapes their names."""
    found = "" if comparison is None else html_tables.segments(comparison.report)
    return Markup(found)  # noqa: S704
