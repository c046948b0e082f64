"""SQL on training runs and their sessions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import case, func, insert, select, tuple_, update

from service.storage.records import Run, RunSession
from service.storage.repository import After, Repository, new_id, now
from service.storage.run_tables import SESSION, run_sessions, runs

NEWEST = (run_sessions.c.begun_at.desc(), run_sessions.c.number.desc())


class Runs(Repository):
    """Runs of a workspace, and their sessions by number."""

    def named(self, workspace: str, name: str) -> Run | None:
        """The run of this name."""
        mine = (runs.c.workspace == workspace) & (runs.c.name == name)
        return self._one(Run, select(runs).where(mine))

    def add(self, workspace: str, name: str, **facts: Any) -> Run | None:
        """A new run; None if somebody else was faster."""
        values = {
            "id": new_id("run"),
            "workspace": workspace,
            "name": name,
            "created_at": now(),
            "updated_at": now(),
            **facts,
        }
        return self._unless_there(Run, insert(runs).values(values).returning(*runs.c))

    def lock(self, id: str) -> Run:
        """The run as it is; nobody else writes to it before the transaction ends."""
        found = self._one(Run, select(runs).where(runs.c.id == id).with_for_update())
        assert found is not None  # noqa: S101 - runs are never deleted
        return found

    def page(self, workspace: str, limit: int, after: After | None, *, archived: bool) -> list[Run]:
        """A page of runs, newest activity first."""
        shown = runs.c.archived_at.is_not(None) if archived else runs.c.archived_at.is_(None)
        chosen = select(runs).where(runs.c.workspace == workspace, shown)
        if after is not None:
            chosen = chosen.where(tuple_(runs.c.updated_at, runs.c.id) < tuple_(*after))
        order = (runs.c.updated_at.desc(), runs.c.id.desc())
        return self._all(Run, chosen.order_by(*order).limit(limit))

    def change(self, id: str, **facts: Any) -> Run:
        """Change tags, description or whether it is archived."""
        changed = update(runs).where(runs.c.id == id).values(**facts)
        found = self._one(Run, changed.returning(*runs.c))
        assert found is not None  # noqa: S101
        return found

    def archive(self, id: str) -> Run:
        """Archive a run; one that is archived stays as it is."""
        return self.change(id, archived_at=func.coalesce(runs.c.archived_at, now()))

    def touch(self, id: str) -> None:
        """Note that something happened in a run."""
        self._changed(update(runs).where(runs.c.id == id).values(updated_at=now()))

    def counts(self) -> dict[str, int]:
        """How many runs there are that are not archived, by kind."""
        chosen = select(runs.c.kind, func.count()).where(runs.c.archived_at.is_(None))
        rows = self.session.execute(chosen.group_by(runs.c.kind)).all()
        return {row[0]: row[1] for row in rows}

    def add_session(self, run: str, begun: float | None, **facts: Any) -> RunSession:
        """The next session of a run that is locked; none began later than now."""
        number = self.session_count(run)
        begun_at = now() if begun is None else case((begun < now(), begun), else_=now())
        times = {"begun_at": begun_at, "created_at": now()}
        values = {"run": run, "number": number + 1, **times, **facts}
        made = self._one(RunSession, insert(run_sessions).values(values).returning(*SESSION))
        assert made is not None  # noqa: S101
        return made

    def session_count(self, run: str) -> int:
        """Return how many sessions a run has: the number of the last, as none is deleted."""
        last = select(func.max(run_sessions.c.number)).where(run_sessions.c.run == run)
        return self.session.scalar(last) or 0

    def base_state(self, session: RunSession) -> dict[str, Any] | None:
        """Return the state that a session goes on from."""
        mine = (run_sessions.c.run == session.run) & (run_sessions.c.number == session.number)
        return self.session.scalar(select(run_sessions.c.base_state).where(mine))

    def session_named(self, run: str, id: str) -> RunSession | None:
        """A session by its caller's id."""
        mine = (run_sessions.c.run == run) & (run_sessions.c.id == id)
        return self._one(RunSession, select(*SESSION).where(mine))

    def session_numbered(self, run: str, number: int) -> RunSession | None:
        """A session by its number."""
        mine = (run_sessions.c.run == run) & (run_sessions.c.number == number)
        return self._one(RunSession, select(*SESSION).where(mine))

    def session_at(self, run: str, step: int) -> RunSession | None:
        """The session that a step of the line is of, or that begins with it."""
        mine = (run_sessions.c.run == run) & (run_sessions.c.base_step <= step)
        return self._one(RunSession, select(*SESSION).where(mine).order_by(*NEWEST).limit(1))

    def sessions(self, run: str, limit: int) -> list[RunSession]:
        """The newest sessions of a run, newest first."""
        chosen = select(*SESSION).where(run_sessions.c.run == run)
        return self._all(RunSession, chosen.order_by(*NEWEST).limit(limit))
