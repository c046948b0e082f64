"""SQL for chores: periodic tasks that only one worker performs at a time."""

from __future__ import annotations

from sqlalchemy import insert, select, update

from service.storage.repository import Repository, now
from service.storage.tables import chores


class Chores(Repository):
    """Chores, with the times when they were last claimed."""

    def claim(self, name: str, every: float) -> bool:
        """Return True for exactly one caller per ``every`` seconds."""
        mine = chores.c.name == name
        due = update(chores).where(mine, chores.c.done_at <= now() - every)
        if self._execute(due.values(done_at=now())):
            return True
        first = insert(chores).values(name=name, done_at=now(), note="")
        return self._one_if_unique(dict, first.returning(chores.c.name)) is not None

    def note(self, name: str) -> str:
        """Return the note of a chore, which is initially empty."""
        return self.session.scalar(select(chores.c.note).where(chores.c.name == name)) or ""

    def set_note(self, name: str, note: str) -> None:
        """Set the note of a chore."""
        if not self._execute(update(chores).where(chores.c.name == name).values(note=note)):
            self._execute(insert(chores).values(name=name, done_at=0.0, note=note))
