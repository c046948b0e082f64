"""SQL for whoever looks at everything: all workspaces, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import and_, func, select, tuple_

from service.storage.records import Dataset, Fit, FitStatus, Part, Version
from service.storage.rows import Repository
from service.storage.tables import (
    alias_moves,
    aliases,
    calibrators,
    datasets,
    fits,
    parts,
    versions,
)

PAGE = 500

Row = TypeVar("Row")
Place = TypeVar("Place")
Number = tuple[str, int]
"""A calibrator's id and the number of one of its versions."""


@dataclass(frozen=True)
class FoundVersion:
    """A version and whose it is."""

    workspace: str
    name: str
    version: Version

    @property
    def place(self) -> Number:
        """Where the next page begins, if it is the last of one."""
        return self.version.calibrator, self.version.number


@dataclass(frozen=True)
class FoundAlias:
    """An alias beside what its history says; ``points_at`` is None if there is no such version."""

    calibrator: str
    alias: str
    name: str
    version: int
    revision: int
    points_at: int | None
    moves: int
    last_revision: int | None
    last_version: int | None

    @property
    def place(self) -> tuple[str, str]:
        """Where the next page begins, if it is the last of one."""
        return self.calibrator, self.alias


@dataclass(frozen=True)
class FoundPart:
    """A part of an upload that is open, and whose it is."""

    workspace: str
    part: Part

    @property
    def place(self) -> tuple[str, int]:
        """Where the next page begins, if it is the last of one."""
        return self.part.dataset, self.part.number


def pages(
    read: Callable[[Place], list[Row]], first: Place, place: Callable[[Row], Place]
) -> Iterator[list[Row]]:
    """All pages; ``place`` is where the next begins after a row that is the last of one."""
    after = first
    while page := read(after):
        yield page
        after = place(page[-1])


class Inventory(Repository):
    """Pages in the order of their ids; ``after`` is the last of the page before."""

    def versions(self, after: Number) -> list[FoundVersion]:
        """Versions, by calibrator and number."""
        place = tuple_(versions.c.calibrator, versions.c.number)
        chosen = (
            select(calibrators.c.workspace, calibrators.c.name, *versions.c)
            .join_from(versions, calibrators)
            .where(place > tuple_(*after))
            .order_by(versions.c.calibrator, versions.c.number)
        )
        found = []
        for row in self.session.execute(chosen.limit(PAGE)).mappings():
            facts = {column.name: row[column] for column in versions.c}
            owner = (row[calibrators.c.workspace], row[calibrators.c.name])
            found.append(FoundVersion(*owner, Version(**facts)))
        return found

    def datasets(self, after: str) -> list[Dataset]:
        """Datasets that are complete."""
        chosen = select(datasets).where(datasets.c.id > after, datasets.c.sha256.is_not(None))
        return self._all(Dataset, chosen.order_by(datasets.c.id).limit(PAGE))

    def parts(self, after: tuple[str, int]) -> list[FoundPart]:
        """Parts of uploads that are open, by dataset and number."""
        chosen = (
            select(datasets.c.workspace, *parts.c)
            .join_from(parts, datasets)
            .where(datasets.c.sha256.is_(None))
            .where(tuple_(parts.c.dataset, parts.c.number) > tuple_(*after))
            .order_by(parts.c.dataset, parts.c.number)
        )
        rows = self.session.execute(chosen.limit(PAGE))
        return [FoundPart(workspace, Part(*part)) for workspace, *part in rows]

    def aliases(self, after: tuple[str, str]) -> list[FoundAlias]:
        """Aliases, by calibrator and name."""
        its_moves = and_(
            alias_moves.c.calibrator == aliases.c.calibrator, alias_moves.c.alias == aliases.c.name
        )
        last = and_(its_moves, alias_moves.c.revision == aliases.c.revision)
        target = and_(
            versions.c.calibrator == aliases.c.calibrator, versions.c.number == aliases.c.version
        )
        chosen = (
            select(
                aliases.c.calibrator,
                aliases.c.name.label("alias"),
                calibrators.c.name,
                aliases.c.version,
                aliases.c.revision,
                select(versions.c.number).where(target).scalar_subquery().label("points_at"),
                select(func.count()).where(its_moves).scalar_subquery().label("moves"),
                select(func.max(alias_moves.c.revision))
                .where(its_moves)
                .scalar_subquery()
                .label("last_revision"),
                select(alias_moves.c.to_version)
                .where(last)
                .scalar_subquery()
                .label("last_version"),
            )
            .join_from(aliases, calibrators)
            .where(tuple_(aliases.c.calibrator, aliases.c.name) > tuple_(*after))
            .order_by(aliases.c.calibrator, aliases.c.name)
        )
        return self._all(FoundAlias, chosen.limit(PAGE))

    def fits(self, status: FitStatus, after: str) -> list[Fit]:
        """Fits of a status."""
        chosen = select(fits).where(fits.c.status == status, fits.c.id > after)
        rows = self.session.execute(chosen.order_by(fits.c.id).limit(PAGE)).mappings()
        return [Fit(**{**row, "status": FitStatus(row["status"])}) for row in rows]

    def fits_of_versions(self, numbers: Collection[Number]) -> dict[Number, str | None]:
        """The fit that each of these versions names, as far as they are there."""
        place = tuple_(versions.c.calibrator, versions.c.number)
        chosen = select(versions.c.calibrator, versions.c.number, versions.c.fit)
        rows = self.session.execute(chosen.where(place.in_(numbers)))
        return {(row.calibrator, row.number): row.fit for row in rows}
