"""SQL for pages that show many calibrators at once: one statement for a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, func, select

from service.storage.rows import Repository
from service.storage.tables import aliases, calibrators, reports, versions

PRODUCTION = "production"


@dataclass(frozen=True)
class Overviewed:
    """A calibrator and its version in production, or its newest if there is none in production.

    ``after`` and ``before`` are the intervals of the ECE in the version's report and ``floor`` is
    its noise floor; None without a report. ``fitted_at`` is of the newest version.
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
    """What a page of calibrators shows."""

    def calibrators(
        self, workspace: str, limit: int, after: str | None, *, prefix: str = ""
    ) -> list[Overviewed]:
        """A page of calibrators by name, of those whose names begin so."""
        mine = select(calibrators).where(calibrators.c.workspace == workspace)
        if prefix:
            mine = mine.where(calibrators.c.name.startswith(prefix, autoescape=True))
        if after is not None:
            mine = mine.where(calibrators.c.name > after)
        listed = mine.order_by(calibrators.c.name).limit(limit).subquery()
        shown, newest = versions.alias("shown"), versions.alias("newest")
        document = reports.c.document
        chosen = (
            select(
                listed.c.name,
                listed.c.last_version,
                aliases.c.version.label("production"),
                shown.c.method,
                shown.c.model,
                shown.c.verdict,
                document[("intervals", "ece")].label("after"),
                document[("before", "intervals", "ece")].label("before"),
                document["noise_floor"].label("floor"),
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
        return self._all(Overviewed, chosen)
