"""SQL for aliases and their history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import case, func, insert, select, tuple_, update

from service.storage.notifications import announce
from service.storage.records import Alias, AliasMove
from service.storage.repository import ROW_BYTES, Repository, json_bytes, now
from service.storage.tables import alias_moves, aliases, calibrators

MAX_IDS = 500


class Aliases(Repository):
    """SQL for aliases of calibrators."""

    def get(self, calibrator: str, name: str) -> Alias | None:
        """Return an alias by its name."""
        mine = (aliases.c.calibrator == calibrator) & (aliases.c.name == name)
        return self._one(Alias, select(aliases).where(mine))

    def all_of(self, calibrator: str) -> list[Alias]:
        """Return the aliases of a calibrator, sorted by name."""
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
        """Point an alias at a version; return None if it differs from ``expected``.

        If ``expected`` is None, the alias must not exist yet. Of two concurrent moves, only one
        succeeds.
        """
        revision = 1 if expected is None else expected.revision + 1
        values = {"version": version, "revision": revision, "moved_at": now()}
        mine = (aliases.c.calibrator == calibrator) & (aliases.c.name == name)
        if expected is None:
            statement: Any = insert(aliases).values(calibrator=calibrator, name=name, **values)
        else:
            same = mine & (aliases.c.revision == expected.revision)
            statement = update(aliases).where(same).values(**values)
        moved = self._one_if_unique(Alias, statement.returning(*aliases.c))
        if moved is not None:
            self._execute(
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
            # a move also counts the row of its rollback, which must work in a full workspace
            size = json_bytes(reason) + (0 if rollback else 2 * (ROW_BYTES + json_bytes(by)))
            counted = update(calibrators).where(calibrators.c.id == calibrator)
            self._execute(counted.values(stored_bytes=calibrators.c.stored_bytes + size))
            announce(self.session)
        return moved

    def history(
        self, calibrator: str, name: str, limit: int, before: int | None = None
    ) -> list[AliasMove]:
        """Return a page of the moves of an alias, newest first."""
        mine = (alias_moves.c.calibrator == calibrator) & (alias_moves.c.alias == name)
        chosen = select(alias_moves).where(mine)
        if before is not None:
            chosen = chosen.where(alias_moves.c.revision < before)
        return self._all(AliasMove, chosen.order_by(alias_moves.c.revision.desc()).limit(limit))

    def version_before(self, there: Alias, limit: int) -> int | None:
        """Return the version of an alias before its last move that was not rolled back.

        Each rollback cancels the newest earlier move that is not cancelled yet. Only the latest
        ``limit`` moves are searched.
        """
        mine = (alias_moves.c.calibrator == there.calibrator) & (alias_moves.c.alias == there.name)
        newest = alias_moves.c.revision.desc()
        one = case((alias_moves.c.rollback, 1), else_=-1)
        is_open = func.sum(one).over(order_by=newest).label("open")
        walked = (
            select(alias_moves.c.revision, alias_moves.c.from_version, is_open)
            .where(mine, alias_moves.c.revision <= there.revision)
            .where(alias_moves.c.revision > there.revision - limit)
            .subquery()
        )
        standing = select(walked.c.from_version).where(walked.c.open < 0)
        return self.session.scalar(standing.order_by(walked.c.revision.desc()).limit(1))

    def moves(self, calibrator: str, limit: int) -> dict[str, list[AliasMove]]:
        """Return the latest moves of each alias of a calibrator, newest first."""
        chosen = select(alias_moves).where(alias_moves.c.calibrator == calibrator)
        found: dict[str, list[AliasMove]] = {}
        for one in self._all(AliasMove, chosen.order_by(alias_moves.c.id.desc()).limit(limit)):
            found.setdefault(one.alias, []).append(one)
        return found

    def count(self, calibrator: str) -> int:
        """Return the number of aliases of a calibrator."""
        return self.counts([calibrator]).get(calibrator, 0)

    def counts(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the number of aliases of each calibrator that has any."""
        mine = aliases.c.calibrator.in_(ids)
        chosen = select(aliases.c.calibrator, func.count()).where(mine)
        rows = self.session.execute(chosen.group_by(aliases.c.calibrator))
        return {row[0]: row[1] for row in rows}

    def by_calibrator(self, ids: Sequence[str]) -> dict[str, list[Alias]]:
        """Return the aliases of each calibrator that has any, sorted by name."""
        chosen = select(aliases).where(aliases.c.calibrator.in_(ids)).order_by(aliases.c.name)
        found: dict[str, list[Alias]] = {}
        for one in self._all(Alias, chosen):
            found.setdefault(one.calibrator, []).append(one)
        return found

    def several(self, places: Sequence[tuple[str, str]]) -> list[Alias]:
        """Return aliases by calibrator id and name."""
        found: list[Alias] = []
        key = tuple_(aliases.c.calibrator, aliases.c.name)
        for start in range(0, len(places), MAX_IDS):
            some = places[start : start + MAX_IDS]
            found += self._all(Alias, select(aliases).where(key.in_(some)))
        return found
