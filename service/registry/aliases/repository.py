"""SQL on aliases and their history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, insert, select, tuple_, update

from service.storage.notifications import announce
from service.storage.records import Alias, AliasMove
from service.storage.repository import Repository, now
from service.storage.tables import alias_moves, aliases

MOST_IDS = 500


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
        moved = self._unless_there(Alias, statement.returning(*aliases.c))
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
            announce(self.session)
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

    def moves(self, calibrator: str, limit: int) -> dict[str, list[AliasMove]]:
        """The last moves of the aliases of a calibrator, newest first, by alias."""
        chosen = select(alias_moves).where(alias_moves.c.calibrator == calibrator)
        found: dict[str, list[AliasMove]] = {}
        for one in self._all(AliasMove, chosen.order_by(alias_moves.c.id.desc()).limit(limit)):
            found.setdefault(one.alias, []).append(one)
        return found

    def count(self, calibrator: str) -> int:
        """Return how many aliases a calibrator has."""
        return self.counts([calibrator]).get(calibrator, 0)

    def counts(self, ids: Sequence[str]) -> dict[str, int]:
        """Return how many aliases each of these calibrators has, if any."""
        mine = aliases.c.calibrator.in_(ids)
        chosen = select(aliases.c.calibrator, func.count()).where(mine)
        rows = self.session.execute(chosen.group_by(aliases.c.calibrator))
        return {row[0]: row[1] for row in rows}

    def by_calibrator(self, ids: Sequence[str]) -> dict[str, list[Alias]]:
        """Return the aliases of these calibrators, by name, for each that has any."""
        chosen = select(aliases).where(aliases.c.calibrator.in_(ids)).order_by(aliases.c.name)
        found: dict[str, list[Alias]] = {}
        for one in self._all(Alias, chosen):
            found.setdefault(one.calibrator, []).append(one)
        return found

    def several(self, places: Sequence[tuple[str, str]]) -> list[Alias]:
        """Return aliases by the ids of their calibrators and their names."""
        found: list[Alias] = []
        key = tuple_(aliases.c.calibrator, aliases.c.name)
        for start in range(0, len(places), MOST_IDS):
            some = places[start : start + MOST_IDS]
            found += self._all(Alias, select(aliases).where(key.in_(some)))
        return found
