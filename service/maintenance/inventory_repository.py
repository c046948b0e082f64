"""SQL for backup and doctor: the rows of all workspaces, one page at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import JSON, Column, Table, Text, and_, cast, exists, func, or_, select, tuple_

from service.runs.repository import LONGEST_MERGE, is_decided
from service.storage.records import Dataset, Fit, FitStatus, Part, Version
from service.storage.repository import Repository, now
from service.storage.run_tables import run_sessions, run_statistics, run_steps, runs
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
LISTS: Mapping[Column[Any], type] = {fits.c.versions: list}
"""The JSON columns that contain lists; all others contain objects."""

Row = TypeVar("Row")
Place = TypeVar("Place")
Number = tuple[str, int]
"""A calibrator's id and the number of one of its versions."""


@dataclass(frozen=True)
class FoundVersion:
    """A version with its workspace and calibrator; ``unreadable`` columns are read as empty."""

    workspace: str
    name: str
    version: Version
    unreadable: list[str]

    @property
    def place(self) -> Number:
        """The cursor of this row: the next page begins after it."""
        return self.version.calibrator, self.version.number


@dataclass(frozen=True)
class FoundFit:
    """A fit; ``unreadable`` columns are read as empty."""

    fit: Fit
    unreadable: list[str]

    @property
    def place(self) -> str:
        """The cursor of this row: the next page begins after it."""
        return self.fit.id


@dataclass(frozen=True)
class FoundAlias:
    """An alias and its history; ``points_at`` is None if its version does not exist."""

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
        """The cursor of this row: the next page begins after it."""
        return self.calibrator, self.alias


@dataclass(frozen=True)
class FoundSession:
    """A session of a run, with its number of steps and its last step.

    ``waiting`` counts the statistics that have waited for more than a day to be merged; it is 0 if
    the run is archived.
    """

    run: str
    number: int
    name: str
    id: str
    base_step: int
    steps: int
    last_step: int | None
    waiting: int
    first_waiting: int | None

    @property
    def place(self) -> tuple[str, int]:
        """The cursor of this row: the next page begins after it."""
        return self.run, self.number


@dataclass(frozen=True)
class FoundPart:
    """A part of an open upload, with its workspace."""

    workspace: str
    part: Part

    @property
    def place(self) -> tuple[str, int]:
        """The cursor of this row: the next page begins after it."""
        return self.part.dataset, self.part.number


def pages(
    read: Callable[[Place], list[Row]], first: Place, place: Callable[[Row], Place]
) -> Iterator[list[Row]]:
    """Yield all pages; ``place`` returns the cursor of a row."""
    after = first
    while page := read(after):
        yield page
        after = place(page[-1])


class Inventory(Repository):
    """Pages of rows in id order; ``after`` is the cursor of the previous page."""

    def is_empty(self) -> bool:
        """Return whether no row refers to a blob."""
        whole = datasets.c.sha256.is_not(None)
        return not self.session.scalar(
            select(or_(exists(select(versions.c.id)), exists(select(datasets.c.id).where(whole))))
        )

    def versions(self, after: Number) -> list[FoundVersion]:
        """Return a page of versions, ordered by calibrator and number."""
        place = tuple_(versions.c.calibrator, versions.c.number)
        chosen = (
            select(calibrators.c.workspace, calibrators.c.name, *_as_text(versions))
            .join_from(versions, calibrators)
            .where(place > tuple_(*after))
            .order_by(versions.c.calibrator, versions.c.number)
        )
        found = []
        for workspace, name, *row in self.session.execute(chosen.limit(PAGE)):
            facts, unreadable = _read(versions, row)
            found.append(FoundVersion(workspace, name, Version(**facts), unreadable))
        return found

    def ownerless_versions(self, after: Number) -> list[Number]:
        """Return a page of versions whose calibrator does not exist."""
        place = (versions.c.calibrator, versions.c.number)
        chosen = (
            select(*place)
            .join_from(versions, calibrators, isouter=True)
            .where(calibrators.c.id.is_(None), tuple_(*place) > tuple_(*after))
            .order_by(*place)
        )
        rows = self.session.execute(chosen.limit(PAGE))
        return [(calibrator, number) for calibrator, number in rows]

    def datasets(self, after: str) -> list[Dataset]:
        """Return a page of complete datasets."""
        chosen = select(datasets).where(datasets.c.id > after, datasets.c.sha256.is_not(None))
        return self._all(Dataset, chosen.order_by(datasets.c.id).limit(PAGE))

    def parts(self, after: tuple[str, int]) -> list[FoundPart]:
        """Return a page of parts of open uploads, ordered by dataset and number."""
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
        """Return a page of aliases, ordered by calibrator and name."""
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

    def run_sessions(self, after: tuple[str, int]) -> list[FoundSession]:
        """Return a page of run sessions, ordered by run and number."""
        its_steps = and_(
            run_steps.c.run == run_sessions.c.run, run_steps.c.session == run_sessions.c.number
        )
        is_overdue = and_(
            run_statistics.c.run == run_sessions.c.run,
            run_statistics.c.session == run_sessions.c.number,
            run_statistics.c.statistics.is_not(None),
            ~is_decided(),
            run_statistics.c.posted_at < now() - LONGEST_MERGE,
            runs.c.archived_at.is_(None),
        )
        place = (run_sessions.c.run, run_sessions.c.number)
        chosen = (
            select(
                *place,
                runs.c.name,
                run_sessions.c.id,
                run_sessions.c.base_step,
                select(func.count()).where(its_steps).scalar_subquery().label("steps"),
                select(func.max(run_steps.c.step))
                .where(its_steps)
                .scalar_subquery()
                .label("last_step"),
                select(func.count()).where(is_overdue).scalar_subquery().label("waiting"),
                select(func.min(run_statistics.c.step))
                .where(is_overdue)
                .scalar_subquery()
                .label("first_waiting"),
            )
            .join_from(run_sessions, runs)
            .where(tuple_(*place) > tuple_(*after))
            .order_by(*place)
        )
        return self._all(FoundSession, chosen.limit(PAGE))

    def fits(self, after: str) -> list[FoundFit]:
        """Return a page of fits."""
        chosen = select(*_as_text(fits)).where(fits.c.id > after).order_by(fits.c.id)
        found = []
        for row in self.session.execute(chosen.limit(PAGE)):
            facts, unreadable = _read(fits, row)
            facts["status"] = FitStatus(facts["status"])
            found.append(FoundFit(Fit(**facts), unreadable))
        return found

    def fits_of_versions(self, numbers: Collection[Number]) -> dict[Number, str | None]:
        """Return the fit id of each version; versions that do not exist are omitted."""
        place = tuple_(versions.c.calibrator, versions.c.number)
        chosen = select(versions.c.calibrator, versions.c.number, versions.c.fit)
        rows = self.session.execute(chosen.where(place.in_(numbers)))
        return {(row.calibrator, row.number): row.fit for row in rows}


def _as_text(table: Table) -> list[Any]:
    """Return the columns with JSON as text, so that an unreadable row does not hide the others."""
    return [cast(one, Text) if _is_json(one) else one for one in table.c]


def _read(table: Table, row: Collection[Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a row, and the names of unreadable JSON columns (read as empty)."""
    facts = dict(zip(table.c.keys(), row, strict=True))
    unreadable = []
    for column in filter(_is_json, table.c):
        shape = LISTS.get(column, dict)
        try:
            value = None if facts[column.name] is None else json.loads(facts[column.name])
        except ValueError:
            value = ...
        if not isinstance(value, shape) and not (value is None and column.nullable):
            unreadable.append(column.name)
            value = shape()
        facts[column.name] = value
    return facts, unreadable


def _is_json(column: Column[Any]) -> bool:
    return isinstance(column.type, JSON)
