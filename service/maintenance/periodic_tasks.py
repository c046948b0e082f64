"""SQL on chores: what one of many workers does now and then."""

from __future__ import annotations

from sqlalchemy import insert, select, update

from service.storage.repository import Repository, now
from service.storage.tables import chores


class Chores(Repository):
    """When each chore was last taken on."""

    def claim(self, name: str, every: float) -> bool:
        """Whether it is the caller's turn; for one of all callers in so many seconds it is."""
        mine = chores.c.name == name
        due = update(chores).where(mine, chores.c.done_at <= now() - every)
        if self._changed(due.values(done_at=now())):
            return True
        first = insert(chores).values(name=name, done_at=now(), note="")
        return self._unless_there(dict, first.returning(chores.c.name)) is not None

    def note(self, name: str) -> str:
        """What was noted about a chore, empty at first."""
        return self.session.scalar(select(chores.c.note).where(chores.c.name == name)) or ""

    def set_note(self, name: str, note: str) -> None:
        """Note something about a chore."""
        if not self._changed(update(chores).where(chores.c.name == name).values(note=note)):
            self._changed(insert(chores).values(name=name, done_at=0.0, note=note))
