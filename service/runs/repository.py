"""SQL for training runs, their sessions, posted statistics and decided steps."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    Integer,
    ScalarSelect,
    Select,
    Subquery,
    Update,
    and_,
    case,
    column,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy import (
    values as rows_of,
)
from sqlalchemy.sql import ColumnElement

from service.storage.records import Run, RunSession, RunStatistics, RunStep, SessionKey
from service.storage.repository import After, Repository, json_bytes, new_id, now
from service.storage.run_tables import SESSION, run_sessions, run_statistics, run_steps, runs

State = dict[str, Any] | None

NEWEST = (run_sessions.c.begun_at.desc(), run_sessions.c.number.desc())
POSTED = (run_statistics.c.rank, run_statistics.c.sha256, run_statistics.c.late)
NOTES = ("tags", "description")
LONGEST_MERGE = 86_400  # seconds
AT_ONCE = 16  # how many statistics, of up to 500 kB each, are read or deleted together


class Head(NamedTuple):
    """The position of a session: its last decided step, or its base (``decided`` is None)."""

    step: int
    state: State
    decided: RunStep | None


class DueSession(NamedTuple):
    """A session whose next step can be decided, and its workspace."""

    key: SessionKey
    workspace: str


class Runs(Repository):
    """SQL for runs and their sessions."""

    def named(self, workspace: str, name: str) -> Run | None:
        """Return the run with this name."""
        mine = (runs.c.workspace == workspace) & (runs.c.name == name)
        return self._one(Run, select(runs).where(mine))

    def add(self, workspace: str, name: str, **facts: Any) -> Run | None:
        """Add a run; return None if it already exists."""
        values = {
            "id": new_id("run"),
            "workspace": workspace,
            "name": name,
            "created_at": now(),
            "updated_at": now(),
            "stored_bytes": json_bytes(facts),
            **facts,
        }
        return self._one_if_unique(Run, insert(runs).values(values).returning(*runs.c))

    def lock(self, id: str) -> Run:
        """Lock a run against other writers until the transaction ends."""
        found = self._one(Run, select(runs).where(runs.c.id == id).with_for_update())
        assert found is not None  # noqa: S101 - runs are never deleted
        return found

    def page(self, workspace: str, limit: int, after: After | None, *, archived: bool) -> list[Run]:
        """Return a page of runs, most recently active first."""
        return self._all(Run, self._newest(workspace, after, archived=archived).limit(limit))

    def affordable(self, workspace: str, limit: int, after: After | None, *, archived: bool) -> int:
        """Return how many of the next ``limit`` runs a page can hold within its size limit."""
        chosen = self._newest(workspace, after, archived=archived)
        return self._affordable(chosen.limit(limit), runs.c.tags, runs.c.description)

    @staticmethod
    def _newest(workspace: str, after: After | None, *, archived: bool) -> Select[Any]:
        shown = runs.c.archived_at.is_not(None) if archived else runs.c.archived_at.is_(None)
        chosen = select(runs).where(runs.c.workspace == workspace, shown)
        if after is not None:
            chosen = chosen.where(tuple_(runs.c.updated_at, runs.c.id) < tuple_(*after))
        order = (runs.c.updated_at.desc(), runs.c.id.desc())
        return chosen.order_by(*order)

    def change(self, id: str, **facts: Any) -> Run:
        """Change the tags, the description or the archived state of a run."""
        before = self.lock(id)
        old = {name: getattr(before, name) for name in facts if name in NOTES}
        new = {name: facts[name] for name in old}
        more = json_bytes(new) - json_bytes(old)
        changed = update(runs).where(runs.c.id == id)
        values = {"stored_bytes": runs.c.stored_bytes + more, **facts}
        found = self._one(Run, changed.values(values).returning(*runs.c))
        assert found is not None  # noqa: S101
        return found

    def archive(self, id: str) -> Run:
        """Archive a run, unless it is already archived."""
        return self.change(id, archived_at=func.coalesce(runs.c.archived_at, now()))

    def touch(self, id: str, more_bytes: int = 0) -> None:
        """Record that a run was active, and add to its stored bytes."""
        values = {"updated_at": now(), "stored_bytes": runs.c.stored_bytes + more_bytes}
        self._execute(update(runs).where(runs.c.id == id).values(values))

    def counts(self) -> dict[str, int]:
        """Return the number of runs that are not archived, by kind."""
        chosen = select(runs.c.kind, func.count()).where(runs.c.archived_at.is_(None))
        rows = self.session.execute(chosen.group_by(runs.c.kind)).all()
        return {row[0]: row[1] for row in rows}

    def add_session(self, run: str, begun: float | None, **facts: Any) -> RunSession:
        """Add the next session of a locked run; ``begun`` is capped at the current time."""
        number = self.session_count(run)
        begun_at = now() if begun is None else case((begun < now(), begun), else_=now())
        times = {"begun_at": begun_at, "created_at": now()}
        values = {"run": run, "number": number + 1, **times, **facts}
        made = self._one(RunSession, insert(run_sessions).values(values).returning(*SESSION))
        assert made is not None  # noqa: S101
        self._execute(_with_bytes(run, json_bytes(facts)))
        return made

    def session_count(self, run: str) -> int:
        """Return the number of sessions of a run: its last session number, as none are deleted."""
        last = select(func.max(run_sessions.c.number)).where(run_sessions.c.run == run)
        return self.session.scalar(last) or 0

    def session_named(self, run: str, id: str) -> RunSession | None:
        """Return a session by the id that the caller chose."""
        mine = (run_sessions.c.run == run) & (run_sessions.c.id == id)
        return self._one(RunSession, select(*SESSION).where(mine))

    def session_numbered(self, run: str, number: int) -> RunSession | None:
        """Return a session by its number."""
        mine = (run_sessions.c.run == run) & (run_sessions.c.number == number)
        return self._one(RunSession, select(*SESSION).where(mine))

    def session_at(self, run: str, step: int) -> RunSession | None:
        """Return the newest session of a run whose base step is at most ``step``."""
        mine = (run_sessions.c.run == run) & (run_sessions.c.base_step <= step)
        return self._one(RunSession, select(*SESSION).where(mine).order_by(*NEWEST).limit(1))

    def sessions(self, run: str, limit: int) -> list[RunSession]:
        """Return the newest sessions of a run, newest first."""
        chosen = select(*SESSION).where(run_sessions.c.run == run)
        return self._all(RunSession, chosen.order_by(*NEWEST).limit(limit))


class RunSteps(Repository):
    """SQL for the statistics and steps of runs; writers must lock the run first."""

    def post(self, session: RunSession, step: int, rank: int, **facts: Any) -> RunStatistics:
        """Record the statistics of a rank."""
        values = {"run": session.run, "session": session.number, "step": step, "rank": rank}
        made = self._one(
            RunStatistics,
            insert(run_statistics).values(**values, posted_at=now(), **facts).returning(*POSTED),
        )
        assert made is not None  # noqa: S101
        return made

    def posted(self, session: RunSession, step: int, rank: int) -> RunStatistics | None:
        """Return the record of a rank's statistics for a step, if it has sent any."""
        mine = _of_step(session, step) & (run_statistics.c.rank == rank)
        return self._one(RunStatistics, select(*POSTED).where(mine))

    def ranks(self, session: RunSession, step: int) -> list[int]:
        """Return the ranks that have sent statistics for a step, sorted; reads only an index."""
        chosen = select(run_statistics.c.rank).where(_of_step(session, step))
        return list(self.session.scalars(chosen.order_by(run_statistics.c.rank)))

    def contents(self, session: RunSession, step: int, ranks: Collection[int]) -> list[bytes]:
        """Return the statistics of these ranks for a step, if they are still stored."""
        content = run_statistics.c.statistics
        mine = _of_step(session, step) & run_statistics.c.rank.in_(ranks)
        return list(self.session.scalars(select(content).where(mine, content.is_not(None))))

    def claimed(self, session: RunSession, step: int) -> dict[str, Any] | None:
        """Return the state that the trainer claims to have after an undecided step."""
        chosen = select(run_statistics.c.claimed).where(_of_step(session, step))
        return self.session.scalar(chosen.order_by(run_statistics.c.rank).limit(1))

    def unreleased(self, limit: int) -> list[tuple[SessionKey, int]]:
        """Return decided steps whose statistics are still stored."""
        place = (run_statistics.c.run, run_statistics.c.session, run_statistics.c.step)
        is_stored = run_statistics.c.statistics.is_not(None)
        chosen = select(*place).distinct().where(is_stored, is_decided())
        rows = self.session.execute(chosen.limit(limit))
        return [(SessionKey(run, number), step) for run, number, step in rows]

    def release(self, key: SessionKey, step: int, limit: int = AT_ONCE) -> int:
        """Delete the statistics of up to ``limit`` ranks of a decided step; return their number."""
        mine = and_(
            run_statistics.c.run == key.run,
            run_statistics.c.session == key.number,
            run_statistics.c.step == step,
        )
        # locked first, so that two workers do not subtract the same bytes from the run
        self.session.execute(select(runs.c.id).where(runs.c.id == key.run).with_for_update())
        content = run_statistics.c.statistics
        chosen = select(run_statistics.c.rank, func.length(content), run_statistics.c.claimed)
        found = self.session.execute(chosen.where(mine, content.is_not(None)).limit(limit)).all()
        sizes = {rank: bytes_until_decided(length, claimed) for rank, length, claimed in found}
        self._execute(_with_bytes(key.run, -sum(sizes.values())))
        released = update(run_statistics).where(mine, run_statistics.c.rank.in_(sizes))
        return self._execute(released.values(statistics=None, claimed=None))

    def is_expected(self, session: RunSession, step: int) -> bool:
        """Return whether statistics have been posted for a step; reads only an index."""
        chosen = select(run_statistics.c.rank).where(_of_step(session, step)).limit(1)
        return self.session.scalar(chosen) is not None

    def add(self, session: RunSession, step: int, reserved: int, **facts: Any) -> RunStep:
        """Add a decided step, whose bytes replace the ``reserved`` ones."""
        values = {"run": session.run, "session": session.number, "step": step}
        made = self._one(
            RunStep,
            insert(run_steps).values(**values, decided_at=now(), **facts).returning(*run_steps.c),
        )
        assert made is not None  # noqa: S101
        self._execute(_with_bytes(session.run, len(json.dumps(facts)) - reserved))
        return made

    def get(self, session: RunSession, step: int) -> RunStep | None:
        """Return a decided step of a session."""
        mine = _of(run_steps, session) & (run_steps.c.step == step)
        return self._one(RunStep, select(run_steps).where(mine))

    def last(self, session: RunSession) -> RunStep | None:
        """Return the last decided step of a session."""
        chosen = select(run_steps).where(_of(run_steps, session))
        return self._one(RunStep, chosen.order_by(run_steps.c.step.desc()).limit(1))

    def head(self, session: RunSession) -> Head:
        """Return the position of a session."""
        last = self.last(session)
        if last is None:
            return Head(session.base_step, self.base_state(session), None)
        return Head(last.step, last.state, last)

    def base_state(self, session: RunSession) -> dict[str, Any] | None:
        """Return the state that a session starts from."""
        mine = (run_sessions.c.run == session.run) & (run_sessions.c.number == session.number)
        return self.session.scalar(select(run_sessions.c.base_state).where(mine))

    def last_numbers(self, keys: Collection[SessionKey]) -> dict[SessionKey, int]:
        """Return the last decided step number for each session with a decided step."""
        if not keys:
            return {}
        wanted = _rows_of(keys)
        mine = and_(run_steps.c.run == wanted.c.run, run_steps.c.session == wanted.c.number)
        last = select(func.max(run_steps.c.step)).where(mine).scalar_subquery()
        rows = self.session.execute(select(wanted.c.run, wanted.c.number, last))
        return {SessionKey(run, number): step for run, number, step in rows if step is not None}

    def due(self, keys: Collection[SessionKey] | None, limit: int) -> list[SessionKey]:
        """Return sessions whose next step can be decided: the step is complete or past its timeout.

        Reads only indexes, because a row of statistics may take 500 kB.
        """
        if keys is not None and not keys:
            return []
        found = _due(keys)
        place = select(found.c.run, found.c.number).limit(limit)
        return [SessionKey(*row) for row in self.session.execute(place)]

    def due_in_turns(self, limit: int) -> list[DueSession]:
        """Return due sessions, alternating between workspaces, each in order of waiting time."""
        found = _due(None)
        oldest_first = (found.c.first, found.c.run, found.c.number)
        own = func.row_number().over(partition_by=runs.c.workspace, order_by=oldest_first)
        ranked = (
            select(found, runs.c.workspace, own.label("turn"))
            .join(runs, runs.c.id == found.c.run)
            .subquery()
        )
        chosen = select(ranked).order_by(ranked.c.turn, ranked.c.first).limit(limit)
        return [
            DueSession(SessionKey(row.run, row.number), row.workspace)
            for row in self.session.execute(chosen)
        ]

    def waiting(self) -> int:
        """Return the number of statistics waiting for other ranks or for the previous step."""
        waits = run_statistics.c.statistics.is_not(None) & ~is_decided()
        return self.session.scalar(select(func.count()).where(waits)) or 0


def _due(keys: Collection[SessionKey] | None) -> Subquery:
    """Select the due sessions (of ``keys``, if given) and when their statistics first arrived."""
    its = (run_sessions.c.run, run_sessions.c.number)
    wanted = _with_statistics() if keys is None else _rows_of(keys)
    decided = select(func.max(run_steps.c.step)).where(
        run_steps.c.run == its[0], run_steps.c.session == its[1]
    )
    last = decided.correlate(run_sessions).scalar_subquery()
    head = func.coalesce(last, run_sessions.c.base_step)
    of_next_step = and_(
        run_statistics.c.run == its[0],
        run_statistics.c.session == its[1],
        run_statistics.c.step == head + 1,
    )

    def of_session(figure: ColumnElement[Any]) -> ScalarSelect[Any]:
        chosen = select(figure).select_from(run_statistics).where(of_next_step)
        return chosen.correlate(run_sessions).scalar_subquery()

    posted, first = of_session(func.count()), of_session(func.min(run_statistics.c.posted_at))
    chosen = (
        select(*its, first.label("first"))
        .join(wanted, and_(wanted.c.run == its[0], wanted.c.number == its[1]))
        .where(
            first.is_not(None),
            or_(
                run_sessions.c.decides == "trainer",
                first + run_sessions.c.merge_timeout <= now(),
                posted >= run_sessions.c.world_size,
            ),
        )
    )
    return chosen.subquery()


def _rows_of(keys: Collection[SessionKey]) -> CTE:
    """Return keys as rows to join with, because SQLite uses no index for a list of pairs."""
    columns = (column("run", run_sessions.c.run.type), column("number", Integer))
    return rows_of(*columns, name="keys").data([tuple(key) for key in keys]).cte("keys")


def _with_statistics() -> Subquery:
    """Return the sessions that have stored statistics."""
    place = (run_statistics.c.run, run_statistics.c.session.label("number"))
    is_stored = run_statistics.c.statistics.is_not(None)
    return select(*place).where(is_stored).distinct().subquery()


def bytes_until_decided(content: int, claimed: State) -> int:
    """Return how many bytes statistics and a claimed state take until the step is decided.

    >>> bytes_until_decided(10, {"a": 1})
    18
    """
    return content + (0 if claimed is None else len(json.dumps(claimed)))


def _with_bytes(run: str, more: int) -> Update:
    """Return the statement that adds ``more`` to the stored bytes of a run."""
    values = {"stored_bytes": runs.c.stored_bytes + more}
    return update(runs).where(runs.c.id == run).values(values)


def is_decided() -> ColumnElement[bool]:
    """Return an SQL condition on a statistics row: its step is decided."""
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
    """Match the statistics of a step."""
    return _of(run_statistics, session) & (run_statistics.c.step == step)
