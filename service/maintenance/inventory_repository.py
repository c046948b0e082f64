"""SQL for whoever looks at everything: all workspaces, a page at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import JSON, Column, Table, Text, and_, cast, func, select, tuple_

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
"""Seconds that statistics may wait for other ranks of their step."""
LISTS: Mapping[Column[Any], type] = {fits.c.versions: list}
"""The columns of JSON that hold no object."""

Row = TypeVar("Row")
Place = TypeVar("Place")
Number = tuple[str, int]
"""A calibrator's id and the number of one of its versions."""


@dataclass(frozen=True)
class FoundVersion:
    """A version and whose it is; columns that are ``unreadable`` are empty in it."""

    workspace: str
    name: str
    version: Version
    unreadable: list[str]

    @property
    def place(self) -> Number:
        """Where the next page begins, if it is the last of one."""
        return self.version.calibrator, self.version.number


@dataclass(frozen=True)
class FoundFit:
    """A fit; columns that are ``unreadable`` are empty in it."""

    fit: Fit
    unreadable: list[str]

    @property
    def place(self) -> str:
        """Where the next page begins, if it is the last of one."""
        return self.fit.id


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
class FoundSession:
    """A session of a run, how many of its steps are there, and the number of the last.

    ``waiting`` are statistics that could not be merged for a day, if the run is not archived.
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
        """Where the next page begins, if it is the last of one."""
        return self.run, self.number


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
        """Versions whose calibrator is gone."""
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

    def run_sessions(self, after: tuple[str, int]) -> list[FoundSession]:
        """Sessions of runs, by run and number."""
        its_steps = and_(
            run_steps.c.run == run_sessions.c.run, run_steps.c.session == run_sessions.c.number
        )
        in_vain = and_(
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
                select(func.count()).where(in_vain).scalar_subquery().label("waiting"),
                select(func.min(run_statistics.c.step))
                .where(in_vain)
                .scalar_subquery()
                .label("first_waiting"),
            )
            .join_from(run_sessions, runs)
            .where(tuple_(*place) > tuple_(*after))
            .order_by(*place)
        )
        return self._all(FoundSession, chosen.limit(PAGE))

    def fits(self, status: FitStatus, after: str) -> list[FoundFit]:
        """Fits of a status."""
        chosen = select(*_as_text(fits)).where(fits.c.status == status, fits.c.id > after)
        found = []
        for row in self.session.execute(chosen.order_by(fits.c.id).limit(PAGE)):
            facts, unreadable = _read(fits, row)
            found.append(FoundFit(Fit(**{**facts, "status": status}), unreadable))
        return found

    def fits_of_versions(self, numbers: Collection[Number]) -> dict[Number, str | None]:
        """The fit that each of these versions names, as far as they are there."""
        place = tuple_(versions.c.calibrator, versions.c.number)
        chosen = select(versions.c.calibrator, versions.c.number, versions.c.fit)
        rows = self.session.execute(chosen.where(place.in_(numbers)))
        return {(row.calibrator, row.number): row.fit for row in rows}


def _as_text(table: Table) -> list[Any]:
    """Columns with JSON as its text: a row that cannot be read must not hide the others."""
    return [cast(one, Text) if _is_json(one) else one for one in table.c]


def _read(table: Table, row: Collection[Any]) -> tuple[dict[str, Any], list[str]]:
    """What a row holds, and which of its columns are not what they should be, empty then."""
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
