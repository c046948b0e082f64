"""The page that compares two versions of a calibrator: as judged, and on the same rows."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query, Request, Response
from markupsafe import Markup

from calibrators import charts, tables
from service.api.parts import Caller, Joined, Parts, check_scope
from service.core import versions
from service.core.access import Principal, Scope
from service.core.comparing import Comparison, Pair
from service.core.versions import Judged
from service.errors import Conflict, Invalid, NotFound, ServiceError
from service.storage.records import PRODUCTION, CalibratorRow, Dataset, Version
from service.storage.store import Store
from service.web.layout import page, pages

router = pages()
logger = logging.getLogger(__name__)

DATASETS = 50

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
        stored, data = _datasets(store, caller, (second.version, first.version), dataset)
    measured = Measured(trouble="no dataset")
    if data is not None and request.method == "GET":
        measured = _measured(joined, caller, name, (first, second), data)
    values = {
        "name": name,
        "sides": (first, second),
        "newest": calibrator.last_version,
        "datasets": stored,
        "dataset": data,
        "measured": measured,
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
    store: Store, caller: Principal, of: tuple[Version, Version], asked: str
) -> tuple[list[Dataset], Dataset | None]:
    """Those to choose from, and the one to measure on: none if nothing says which."""
    version, workspace = of[0], caller.workspace
    if asked:
        check_scope(caller, Scope.FIT)
    if not caller.may(Scope.FIT):
        return [], None
    stored = store.datasets.like(workspace, version.kind, version.classes, DATASETS)
    fits = [store.fits.get(one.fit, workspace) for one in of if one.fit is not None]
    made = [one for one in fits if one is not None]
    usual = [one.evaluation for one in made] + [one.dataset for one in made]
    found = (store.datasets.get(workspace, one) for one in ([asked] if asked else usual) if one)
    data = next((one for one in found if one and _suits(one, version)), None)
    if asked and data is None:
        raise NotFound("no_such_dataset", "there is no such dataset for these versions")
    if data is not None and data not in stored:
        stored = [data, *stored]
    return stored, data


def _suits(dataset: Dataset, version: Version) -> bool:
    return (dataset.kind, dataset.classes) == (version.kind, version.classes) and dataset.is_ready


def _measured(
    joined: Parts, caller: Principal, name: str, sides: tuple[Judged, Judged], data: Dataset
) -> Measured:
    pair = Pair(name, sides[0].version.number, sides[1].version.number)
    try:
        return Measured.of(joined.comparisons.ask(caller, pair, data))
    except ServiceError as error:
        return Measured(trouble=error.message)


def _chart(comparison: Comparison | None, first: Judged, second: Judged) -> dict[str, Any] | None:
    """The reliability diagrams of both on the same rows."""
    if comparison is None:
        return None
    titles = {"before": first.title, "after": second.title}
    return charts.reliability(comparison.report, titles=titles)


def _segments(comparison: Comparison | None) -> Markup:
    """The table of the segments, which escapes their names."""
    found = "" if comparison is None else tables.segments(comparison.report)
    return Markup(found)  # noqa: S704
