"""SQL on aliases and their history."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, insert, select, update

from service.storage.records import Alias, AliasMove
from service.storage.rows import Repository, now
from service.storage.tables import alias_moves, aliases


class Aliases(Repository):
    """Aliases of calibrators."""

    def get(self, calibrator: str, name: str) -> Alias | None:
        """Where an alias points."""
        mine = (aliases.c.calibrator == calibrator) & (aliases.c.name == name)
        return self._one(Alias, select(aliases).where(mine))

    def all_of(self, calibrator: str) -> list[Alias]:
        """The aliases of a calibrator by name."""
        chosen = select(aliases).where(aliases.c.calibrator == calibrator)
        return self._all(Alias, chosen.order_by(aliases.c.name))

    def move(
        self,
        calibrator: str,
        name: str,
        *,
        version: int,
        expected: Alias | None,
        by: str,
        reason: str,
        forced: bool = False,
        rollback: bool = False,
    ) -> Alias | None:
        """Point an alias at a version if it is still as ``expected``; None if it is not.

        ``expected`` None means that there is no such alias yet. Two movers of one alias end with
        one winner.
        """
        revision = 1 if expected is None else expected.revision + 1
        values = {"version": version, "revision": revision, "moved_at": now()}
        mine = (aliases.c.calibrator == calibrator) & (aliases.c.name == name)
        if expected is None:
            statement: Any = insert(aliases).values(calibrator=calibrator, name=name, **values)
        else:
            same = mine & (aliases.c.revision == expected.revision)
            statement = update(aliases).where(same).values(**values)
        moved = self._added(Alias, statement.returning(*aliases.c))
        if moved is not None:
            self._changed(
                insert(alias_moves).values(
                    calibrator=calibrator,
                    alias=name,
                    revision=revision,
                    from_version=None if expected is None else expected.version,
                    to_version=version,
                    moved_by=by,
                    moved_at=now(),
                    reason=reason,
                    forced=forced,
                    rollback=rollback,
                )
            )
        return moved

    def history(
        self, calibrator: str, name: str, limit: int, before: int | None = None
    ) -> list[AliasMove]:
        """A page of the moves of an alias, newest first."""
        mine = (alias_moves.c.calibrator == calibrator) & (alias_moves.c.alias == name)
        chosen = select(alias_moves).where(mine)
        if before is not None:
            chosen = chosen.where(alias_moves.c.revision < before)
        return self._all(AliasMove, chosen.order_by(alias_moves.c.revision.desc()).limit(limit))

    def last_move(self) -> int:
        """The id of the last move of any alias; 0 if there was none."""
        return int(self.session.scalar(select(func.max(alias_moves.c.id))) or 0)

    def moved_since(self, move: int) -> list[AliasMove]:
        """Moves after the one with this id, of all calibrators, oldest first."""
        chosen = select(alias_moves).where(alias_moves.c.id > move)
        return self._all(AliasMove, chosen.order_by(alias_moves.c.id))
