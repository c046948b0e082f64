"""SQL on the steps of runs: what ranks posted, and what was decided."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from sqlalchemy import Integer, and_, column, func, insert, or_, select, tuple_, update, values
from sqlalchemy.sql import ColumnElement

from service.storage.records import RunSession, RunStatistics, RunStep
from service.storage.repository import Repository, now
from service.storage.run_tables import SESSION, run_sessions, run_statistics, run_steps

POSTED = (run_statistics.c.rank, run_statistics.c.sha256, run_statistics.c.late)
LONGEST_MERGE = 86_400  # seconds
AT_ONCE = 16  # statistics, of up to 500 kB each, that are read or deleted together


class SessionKey(NamedTuple):
    """A session by its run's id and its number."""

    run: str
    number: int


class Standing(NamedTuple):
    """How many ranks have posted for a step, and for how many seconds the first has waited."""

    ranks: int
    seconds: float


class Stretch(NamedTuple):
    """The steps of a session that are on the line of its run, from ``first`` to ``last``."""

    session: int
    first: int
    last: int


class Shown(NamedTuple):
    """A step with the session that it belongs to."""

    step: RunStep
    session: RunSession


class RunSteps(Repository):
    """Statistics and steps of runs; whoever writes has locked the run."""

    def post(self, session: RunSession, step: int, rank: int, **facts: Any) -> RunStatistics:
        """Record what a rank sent."""
        values = {"run": session.run, "session": session.number, "step": step, "rank": rank}
        made = self._one(
            RunStatistics,
            insert(run_statistics).values(**values, posted_at=now(), **facts).returning(*POSTED),
        )
        assert made is not None  # noqa: S101
        return made

    def posted(self, session: RunSession, step: int, rank: int) -> RunStatistics | None:
        """Return that a rank has sent statistics for a step, if it has."""
        mine = _of_step(session, step) & (run_statistics.c.rank == rank)
        return self._one(RunStatistics, select(*POSTED).where(mine))

    def ranks(self, session: RunSession, step: int) -> list[int]:
        """Return which ranks have sent statistics for a step, in order; by an index alone."""
        chosen = select(run_statistics.c.rank).where(_of_step(session, step))
        return list(self.session.scalars(chosen.order_by(run_statistics.c.rank)))

    def standing(self, session: RunSession, step: int) -> Standing:
        """How far a step is that is not decided."""
        waited = func.coalesce(now() - func.min(run_statistics.c.posted_at), 0.0)
        chosen = select(func.count(), waited).where(_of_step(session, step))
        ranks, seconds = self.session.execute(chosen).one()
        return Standing(ranks, seconds)

    def contents(self, session: RunSession, step: int, ranks: Collection[int]) -> list[bytes]:
        """Return the bytes that ranks have sent for a step, of those that still have them."""
        content = run_statistics.c.statistics
        mine = _of_step(session, step) & run_statistics.c.rank.in_(ranks)
        return list(self.session.scalars(select(content).where(mine, content.is_not(None))))

    def claimed(self, session: RunSession, step: int) -> dict[str, Any] | None:
        """The state that a trainer says it has after a step that is not decided."""
        chosen = select(run_statistics.c.claimed).where(_of_step(session, step))
        return self.session.scalar(chosen.order_by(run_statistics.c.rank).limit(1))

    def unreleased(self, limit: int) -> list[tuple[SessionKey, int]]:
        """Return decided steps whose statistics are still kept."""
        place = (run_statistics.c.run, run_statistics.c.session, run_statistics.c.step)
        kept = run_statistics.c.statistics.is_not(None)
        chosen = select(*place).distinct().where(kept, is_decided())
        rows = self.session.execute(chosen.limit(limit))
        return [(SessionKey(run, number), step) for run, number, step in rows]

    def release(self, key: SessionKey, step: int, limit: int = AT_ONCE) -> int:
        """Delete the bytes of so many ranks of a decided step; return how many had any."""
        mine = and_(
            run_statistics.c.run == key.run,
            run_statistics.c.session == key.number,
            run_statistics.c.step == step,
        )
        kept = select(run_statistics.c.rank).where(mine, run_statistics.c.statistics.is_not(None))
        ranks = list(self.session.scalars(kept.limit(limit)))
        given = update(run_statistics).where(mine, run_statistics.c.rank.in_(ranks))
        return self._changed(given.values(statistics=None, claimed=None))

    def add(self, session: RunSession, step: int, **facts: Any) -> RunStep:
        """A step is decided."""
        values = {"run": session.run, "session": session.number, "step": step}
        made = self._one(
            RunStep,
            insert(run_steps).values(**values, decided_at=now(), **facts).returning(*run_steps.c),
        )
        assert made is not None  # noqa: S101
        return made

    def get(self, session: RunSession, step: int) -> RunStep | None:
        """A step of a session, if it is decided."""
        mine = _of(run_steps, session) & (run_steps.c.step == step)
        return self._one(RunStep, select(run_steps).where(mine))

    def last(self, session: RunSession) -> RunStep | None:
        """The last step of a session that is decided."""
        chosen = select(run_steps).where(_of(run_steps, session))
        return self._one(RunStep, chosen.order_by(run_steps.c.step.desc()).limit(1))

    def last_numbers(self, keys: Collection[SessionKey]) -> dict[SessionKey, int]:
        """The numbers of the last decided steps of those sessions that have any."""
        place = (run_steps.c.run, run_steps.c.session)
        chosen = select(*place, func.max(run_steps.c.step)).where(tuple_(*place).in_(keys))
        rows = self.session.execute(chosen.group_by(*place))
        return {SessionKey(run, number): step for run, number, step in rows}

    def page(
        self, run: str, limit: int, after: int | None, session: RunSession | None
    ) -> list[Shown]:
        """A page of the steps of a session, or of the run's line, oldest first."""
        if session is not None:
            chosen = select(run_steps).where(_of(run_steps, session))
            chosen = chosen.where(run_steps.c.step > (after or 0))
            found = self._all(RunStep, chosen.order_by(run_steps.c.step).limit(limit))
            return [Shown(one, session) for one in found]
        cut = _cut(self._line(run), after or 0, limit)
        if not cut:
            return []
        its_sessions = self._numbered(run, [one.session for one in cut])
        shown = (
            values(*(column(one, Integer) for one in Stretch._fields), name="shown").data(cut).cte()
        )
        within = and_(
            run_steps.c.run == run,
            run_steps.c.session == shown.c.session,
            run_steps.c.step.between(shown.c.first, shown.c.last),
        )
        # sorted here: to sort in SQL, SQLite would read all steps of the run
        steps = self._all(RunStep, select(*run_steps.c).select_from(shown).join(run_steps, within))
        steps.sort(key=lambda one: one.step)
        return [Shown(one, its_sessions[one.session]) for one in steps]

    def last_on_line(self, run: str, until: int) -> RunStep | None:
        """The last decided step of a run's line, of those up to a step."""
        for one in reversed(self._line(run)):
            if one.first <= until:
                step = min(one.last, until)
                mine = (run_steps.c.run == run) & (run_steps.c.session == one.session)
                return self._one(RunStep, select(run_steps).where(mine, run_steps.c.step == step))
        return None

    def _line(self, run: str) -> list[Stretch]:
        """Return the line of a run, oldest step first, at the cost of a look at each session.

        A session counts up to the smallest base of those that began later, where its steps were
        done again; its own steps are numbered from its base without gaps.
        """
        base = run_sessions.c.base_step
        last = (
            select(func.max(run_steps.c.step))
            .where(run_steps.c.run == run_sessions.c.run)
            .where(run_steps.c.session == run_sessions.c.number)
            .scalar_subquery()
        )
        newest = (run_sessions.c.begun_at.desc(), run_sessions.c.number.desc())
        chosen = select(run_sessions.c.number, base, last).where(run_sessions.c.run == run)
        found: list[Stretch] = []
        end = math.inf
        for number, before, its_last in self.session.execute(chosen.order_by(*newest)):
            if its_last is not None and before < end:
                found.append(Stretch(number, before + 1, int(min(its_last, end))))
            end = min(end, before)
        return found[::-1]

    def due(self, keys: Collection[SessionKey] | None, limit: int) -> list[SessionKey]:
        """Sessions whose next step can be decided: it is complete, or has waited long enough."""
        place = (run_statistics.c.run, run_statistics.c.session)
        its_session = and_(
            run_sessions.c.run == run_statistics.c.run,
            run_sessions.c.number == run_statistics.c.session,
        )
        head = (
            select(func.coalesce(func.max(run_steps.c.step), run_sessions.c.base_step))
            .where(run_steps.c.run == run_sessions.c.run)
            .where(run_steps.c.session == run_sessions.c.number)
            .scalar_subquery()
        )
        chosen = (
            select(*place)
            .join(run_sessions, its_session)
            .where(run_statistics.c.statistics.is_not(None), run_statistics.c.step == head + 1)
            .group_by(*place, run_sessions.c.run, run_sessions.c.number)
            .having(
                or_(
                    func.count() >= run_sessions.c.world_size,
                    run_sessions.c.decides == "trainer",
                    func.min(run_statistics.c.posted_at) + run_sessions.c.merge_timeout <= now(),
                )
            )
        )
        if keys is not None:
            chosen = chosen.where(tuple_(*place).in_(keys))
        return [SessionKey(*row) for row in self.session.execute(chosen.limit(limit))]

    def waiting(self) -> int:
        """How many statistics wait for others of their step, or for the step before."""
        waits = run_statistics.c.statistics.is_not(None) & ~is_decided()
        return self.session.scalar(select(func.count()).where(waits)) or 0

    def _numbered(self, run: str, numbers: Collection[int]) -> dict[int, RunSession]:
        mine = (run_sessions.c.run == run) & run_sessions.c.number.in_(numbers)
        found = self._all(RunSession, select(*SESSION).where(mine))
        return {one.number: one for one in found}


def is_decided() -> ColumnElement[bool]:
    """Return whether the step of a row of statistics is decided."""
    its_step = and_(
        run_steps.c.run == run_statistics.c.run,
        run_steps.c.session == run_statistics.c.session,
        run_steps.c.step == run_statistics.c.step,
    )
    return select(run_steps.c.step).where(its_step).correlate(run_statistics).exists()


def _of(table: Any, session: RunSession) -> ColumnElement[bool]:
    mine: ColumnElement[bool] = (table.c.run == session.run) & (table.c.session == session.number)
    return mine


def _of_step(session: RunSession, step: int) -> ColumnElement[bool]:
    """Statistics of a step."""
    return _of(run_statistics, session) & (run_statistics.c.step == step)


def _cut(line: Iterable[Stretch], after: int, limit: int) -> list[Stretch]:
    """Return the first ``limit`` steps of a line that come after one."""
    found: list[Stretch] = []
    for one in line:
        first = max(one.first, after + 1)
        last = min(one.last, first + limit - 1)
        if limit and first <= last:
            found.append(Stretch(one.session, first, last))
            limit -= last - first + 1
    return found
