"""SQL for the lists of calibrators and versions, with one statement per page."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol

from sqlalchemy import and_, func, select

from service.storage.records import PRODUCTION
from service.storage.repository import Repository
from service.storage.tables import aliases, calibrators, reports, versions


class HasVerdict(Protocol):
    """The ECE in a report: the intervals before and after, and the noise floor, if any."""

    @property
    def after(self) -> dict[str, Any] | None:
        """The interval of the ECE after calibration."""

    @property
    def before(self) -> dict[str, Any] | None:
        """The interval of the ECE before calibration."""

    @property
    def floor(self) -> dict[str, Any] | None:
        """The noise floor of the ECE."""


@dataclass(frozen=True)
class VersionLine:
    """A version in a list, with its verdict and its metrics after and before calibration."""

    number: int
    method: str
    dataset_sha256: str | None
    rows: int | None
    verdict: str | None
    verdict_sentence: str | None
    created_by: str
    created_at: float
    fallback: dict[str, Any] | None
    metrics: dict[str, Any] | None
    old_metrics: dict[str, Any] | None
    after: dict[str, Any] | None
    before: dict[str, Any] | None
    floor: dict[str, Any] | None


@dataclass(frozen=True)
class CalibratorLine:
    """A calibrator in a list, with its version in production or, if there is none, its newest.

    ``after`` and ``before`` are the intervals of the ECE in the version's report, and ``floor`` is
    the noise floor; they are None without a report. ``fitted_at`` is the time of the newest
    version.
    """

    name: str
    last_version: int
    production: int | None
    method: str | None
    model: str | None
    verdict: str | None
    after: dict[str, Any] | None
    before: dict[str, Any] | None
    floor: dict[str, Any] | None
    fitted_at: float | None

    @property
    def number(self) -> int | None:
        """The version that is shown."""
        return self.production or self.last_version or None


class Overview(Repository):
    """Queries for the pages that list calibrators and versions."""

    def calibrators(
        self, workspace: str, limit: int, after: str | None, *, prefix: str = ""
    ) -> list[CalibratorLine]:
        """Return a page of calibrators, sorted by name, whose names begin with ``prefix``."""
        mine = select(calibrators).where(calibrators.c.workspace == workspace)
        if prefix:
            mine = mine.where(calibrators.c.name.startswith(prefix, autoescape=True))
        if after is not None:
            mine = mine.where(calibrators.c.name > after)
        listed = mine.order_by(calibrators.c.name).limit(limit).subquery()
        shown, newest = versions.alias("shown"), versions.alias("newest")
        chosen = (
            select(
                listed.c.name,
                listed.c.last_version,
                aliases.c.version.label("production"),
                shown.c.method,
                shown.c.model,
                shown.c.verdict,
                *_judgement(),
                newest.c.created_at.label("fitted_at"),
            )
            .select_from(listed)
            .outerjoin(
                aliases,
                and_(aliases.c.calibrator == listed.c.id, aliases.c.name == PRODUCTION),
            )
            .outerjoin(
                shown,
                and_(
                    shown.c.calibrator == listed.c.id,
                    shown.c.number == func.coalesce(aliases.c.version, listed.c.last_version),
                ),
            )
            .outerjoin(
                reports,
                and_(reports.c.calibrator == listed.c.id, reports.c.number == shown.c.number),
            )
            .outerjoin(
                newest,
                and_(newest.c.calibrator == listed.c.id, newest.c.number == listed.c.last_version),
            )
            .order_by(listed.c.name)
        )
        return self._all(CalibratorLine, chosen)

    def versions(self, calibrator: str, limit: int, before: int | None) -> list[VersionLine]:
        """Return a page of versions, newest first."""
        mine = select(versions).where(versions.c.calibrator == calibrator)
        if before is not None:
            mine = mine.where(versions.c.number < before)
        listed = mine.order_by(versions.c.number.desc()).limit(limit).subquery()
        names = (one.name for one in fields(VersionLine))
        document = reports.c.document
        chosen = (
            select(
                *(listed.c[name] for name in names if name in listed.c),
                listed.c.fit_info["fallback"].label("fallback"),
                document["metrics"].label("metrics"),
                document[("before", "metrics")].label("old_metrics"),
                *_judgement(),
            )
            .select_from(listed)
            .outerjoin(
                reports,
                and_(
                    reports.c.calibrator == listed.c.calibrator,
                    reports.c.number == listed.c.number,
                ),
            )
            .order_by(listed.c.number.desc())
        )
        return self._all(VersionLine, chosen)


def _judgement() -> list[Any]:
    """Return the columns with the ECE in a version's report."""
    document = reports.c.document
    return [
        document[("intervals", "ece")].label("after"),
        document[("before", "intervals", "ece")].label("before"),
        document["noise_floor"].label("floor"),
    ]
