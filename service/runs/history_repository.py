"""SQL for the history of runs: the effective sequence of steps across sessions."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from sqlalchemy import Integer, Select, and_, column, func, select, values
from sqlalchemy.sql import ColumnElement

from service.runs.repository import NEWEST
from service.storage.records import RunSession, RunStep
from service.storage.repository import Repository, page_length
from service.storage.run_tables import SESSION, run_sessions, run_steps

# JSON size of a page of steps; reading it takes a few tens of milliseconds
STEPS_BYTES = 1 << 21
LARGE = ("state", "ranks", "metrics", "bins", "reliability", "switched")


class Stretch(NamedTuple):
    """The steps that a session contributes to the history of its run: ``first`` to ``last``."""

    session: int
    first: int
    last: int


NOTHING = Stretch(session=0, first=1, last=0)


class Shown(NamedTuple):
    """A step and its session."""

    step: RunStep
    session: RunSession


class RunHistory(Repository):
    """SQL for the decided steps of runs."""

    def affordable(
        self, run: str, limit: int, after: int | None, session: RunSession | None
    ) -> int:
        """Return how many of the next ``limit`` steps a page can hold within its size limit."""
        size = self._size(*(run_steps.c[one] for one in LARGE))
        chosen = self._chosen(run, limit, after, session)
        chosen = chosen.with_only_columns(run_steps.c.step, size, maintain_column_froms=True)
        found = sorted(self.session.execute(chosen))
        return page_length((octets for _, octets in found), STEPS_BYTES)

    def page(
        self, run: str, limit: int, after: int | None, session: RunSession | None
    ) -> list[Shown]:
        """Return a page of the steps of a session, or of the run's history, oldest first."""
        steps = self._all(RunStep, self._chosen(run, limit, after, session))
        steps.sort(key=lambda one: one.step)
        if session is not None:
            return [Shown(one, session) for one in steps]
        its_sessions = self._numbered(run, {one.session for one in steps})
        return [Shown(one, its_sessions[one.session]) for one in steps]

    def _chosen(
        self, run: str, limit: int, after: int | None, session: RunSession | None
    ) -> Select[Any]:
        """Select the first ``limit`` steps after ``after``, in any order."""
        if session is not None:
            chosen = select(run_steps).where(_of(session), run_steps.c.step > (after or 0))
            return chosen.order_by(run_steps.c.step).limit(limit)
        cut = _cut(self._line(run), after or 0, limit) or [NOTHING]
        shown = (
            values(*(column(one, Integer) for one in Stretch._fields), name="shown").data(cut).cte()
        )
        within = and_(
            run_steps.c.run == run,
            run_steps.c.session == shown.c.session,
            run_steps.c.step.between(shown.c.first, shown.c.last),
        )
        # without ORDER BY, for which SQLite would read all steps of the run
        return select(*run_steps.c).select_from(shown).join(run_steps, within)

    def last_in_history(self, run: str, until: int) -> RunStep | None:
        """Return the last decided step of a run's history that is not after ``until``, if any."""
        for one in reversed(self._line(run)):
            if one.first <= until:
                step = min(one.last, until)
                mine = (run_steps.c.run == run) & (run_steps.c.session == one.session)
                return self._one(RunStep, select(run_steps).where(mine, run_steps.c.step == step))
        return None

    def _line(self, run: str) -> list[Stretch]:
        """Return the history of a run, oldest step first, with one index lookup per session.

        A session that starts from an earlier step repeats the steps after that one; only the
        repetitions belong to the history. The steps of a session have no gaps.
        """
        base = run_sessions.c.base_step
        last = (
            select(func.max(run_steps.c.step))
            .where(run_steps.c.run == run_sessions.c.run)
            .where(run_steps.c.session == run_sessions.c.number)
            .scalar_subquery()
        )
        chosen = select(run_sessions.c.number, base, last).where(run_sessions.c.run == run)
        found: list[Stretch] = []
        end = math.inf
        for number, before, its_last in self.session.execute(chosen.order_by(*NEWEST)):
            if its_last is not None and before < end:
                found.append(Stretch(number, before + 1, int(min(its_last, end))))
            end = min(end, before)
        return found[::-1]

    def _numbered(self, run: str, numbers: Collection[int]) -> dict[int, RunSession]:
        mine = (run_sessions.c.run == run) & run_sessions.c.number.in_(numbers)
        found = self._all(RunSession, select(*SESSION).where(mine))
        return {one.number: one for one in found}


def _of(session: RunSession) -> ColumnElement[bool]:
    """Match the steps of a session."""
    return (run_steps.c.run == session.run) & (run_steps.c.session == session.number)


def _cut(line: Iterable[Stretch], after: int, limit: int) -> list[Stretch]:
    """Return stretches with the first ``limit`` steps of a history after the step ``after``."""
    found: list[Stretch] = []
    for one in line:
        first = max(one.first, after + 1)
        last = min(one.last, first + limit - 1)
        if limit and first <= last:
            found.append(Stretch(one.session, first, last))
            limit -= last - first + 1
    return found
