"""The page that compares two versions of a calibrator: as judged, and on the same rows."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query, Request, Response

from calibrators import charts
from service.api.parts import Caller, Joined, Parts
from service.core import versions
from service.core.access import Principal, Scope
from service.core.comparing import Comparison, Pair
from service.core.versions import Judged
from service.errors import Invalid, NotFound, ServiceError
from service.storage.overview import PRODUCTION
from service.storage.records import CalibratorRow, Dataset, Version
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
        if not asked.done():
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
        stored = _datasets(store, caller, second.version)
        usual = _usual(store, caller, (second.version, first.version), stored)
    data = next((one for one in stored if one.id == dataset), usual)
    if dataset and (data is None or data.id != dataset):
        raise NotFound("no_such_dataset", "there is no such dataset for these versions")
    measured = _measured(joined, caller, name, (first, second), data)
    values = {
        "name": name,
        "sides": (first, second),
        "newest": calibrator.last_version,
        "datasets": stored,
        "dataset": data,
        "measured": measured,
        "chart": _chart(measured.comparison, first, second),
        "may_fit": caller.may(Scope.FIT),
    }
    return page(request, "compare.html", values)


def _chosen(
    store: Store, calibrator: CalibratorRow, a: int | None, b: int | None
) -> tuple[int, int]:
    """The numbers asked for; else the newest, and what is in production or the one before it."""
    production = store.aliases.get(calibrator.id, PRODUCTION)
    second = b or calibrator.last_version
    first = a or (production.version if production and production.version != second else second - 1)
    if first < 1 or second < 1:
        raise NotFound("no_such_version", f"{calibrator.name} has no two versions to compare")
    if first == second:
        raise Invalid("same_version", f"choose two versions: both are {first}")
    return first, second


def _datasets(store: Store, caller: Principal, version: Version) -> list[Dataset]:
    if not caller.may(Scope.FIT):
        return []
    return store.datasets.like(caller.workspace, version.kind, version.classes, DATASETS)


def _usual(
    store: Store, caller: Principal, of: tuple[Version, Version], stored: list[Dataset]
) -> Dataset | None:
    """What the versions were judged on, if that is a set of its own; else were fitted on."""
    fits = [store.fits.get(one.fit, caller.workspace) for one in of if one.fit is not None]
    wanted = [one.evaluation for one in fits if one] + [one.dataset for one in fits if one]
    known = {one.id: one for one in stored}
    return next((known[one] for one in wanted if one in known), stored[0] if stored else None)


def _measured(
    joined: Parts, caller: Principal, name: str, sides: tuple[Judged, Judged], data: Dataset | None
) -> Measured:
    if data is None:
        return Measured(trouble="no dataset")
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
