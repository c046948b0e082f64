"""SQL on the steps of runs: what ranks posted, and what was decided."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import Select, and_, func, insert, or_, select, tuple_, update
from sqlalchemy.sql import ColumnElement

from service.storage.records import RunSession, RunStatistics, RunStep
from service.storage.rows import Repository, now
from service.storage.run_tables import SESSION, run_sessions, run_statistics, run_steps

POSTED = (run_statistics.c.rank, run_statistics.c.sha256, run_statistics.c.late)
AT_ONCE = 16  # statistics, of up to 500 kB each, that are read or deleted together


class SessionKey(NamedTuple):
    """A session by its run's id and its number."""

    run: str
    number: int


class Standing(NamedTuple):
    """How many ranks have posted for a step, and for how many seconds the first has waited."""

    ranks: int
    seconds: float


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
        chosen = _shown(run)
        if session is None:
            chosen = chosen.where(_on_the_line())
        else:
            chosen = chosen.where(run_steps.c.session == session.number)
        if after is not None:
            chosen = chosen.where(run_steps.c.step > after)
        return self._shown(chosen.order_by(run_steps.c.step).limit(limit))

    def last_on_line(self, run: str, until: int) -> RunStep | None:
        """The last decided step of a run's line, of those up to a step."""
        chosen = _shown(run).where(_on_the_line(), run_steps.c.step <= until)
        found = self._shown(chosen.order_by(run_steps.c.step.desc()).limit(1))
        return found[0].step if found else None

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

    def _shown(self, statement: Select[Any]) -> list[Shown]:
        width = len(run_steps.c)
        steps, sessions = run_steps.c.keys(), [column.name for column in SESSION]
        return [
            Shown(
                RunStep(**dict(zip(steps, row[:width], strict=True))),
                RunSession(**dict(zip(sessions, row[width:], strict=True))),
            )
            for row in self.session.execute(statement)
        ]


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


def _shown(run: str) -> Select[Any]:
    """Steps beside their sessions; both have columns of the same names."""
    its_session = and_(
        run_sessions.c.run == run_steps.c.run, run_sessions.c.number == run_steps.c.session
    )
    return (
        select(*run_steps.c, *SESSION)
        .join(run_sessions, its_session)
        .where(run_steps.c.run == run)
    )


def _on_the_line() -> ColumnElement[bool]:
    """No session that began later goes on from before this step: it was not done again."""
    newer = run_sessions.alias("newer")
    order = (newer.c.begun_at, newer.c.number)
    began_before = (
        select(newer.c.number)
        .where(newer.c.run == run_steps.c.run)
        .where(tuple_(*order) > tuple_(run_sessions.c.begun_at, run_sessions.c.number))
        .where(newer.c.base_step < run_steps.c.step)
    )
    return ~began_before.exists()
