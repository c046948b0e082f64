"""Calls for aliases: promote, roll back, history."""

from __future__ import annotations

from calibrd.api.references import Reference, checked_name
from calibrd.api.versions import VersionCalls
from calibrd.models import Alias, Move, Version
from calibrd.transport.flows import Flow, call


class AliasCalls(VersionCalls):
    """Calls for aliases."""

    @call
    def promote(
        self,
        name: str,
        version: int | str | Version,
        *,
        alias: str = "production",
        reason: str = "",
        force: bool = False,
        expected: int | None = None,
    ) -> Flow[Alias]:
        """Point an alias of a calibrator at a version, given by its number or another alias.

        ``force`` and a ``reason`` are required if the version was judged ``worse``,
        ``insufficient_data`` or ``at_chance``, was not judged, or is measurably less accurate than
        the model itself or the version that the alias points at. ``expected`` is the last known
        revision (0 if the alias does not exist yet); if the alias has moved since, the call
        fails with ``alias_has_moved``.
        """
        checked_name(name)
        if isinstance(version, Version) and version.calibrator != name:
            raise ValueError(f"{version.reference} is not a version of {name!r}")
        wanted = version.number if isinstance(version, Version) else version
        number = yield from self.number_at(Reference.of(f"{name}@{wanted}"))
        body = {"version": number, "reason": reason, "force": force}
        place = ("calibrators", name, "aliases", alias)
        return (
            yield from self.request_record(
                Alias,
                "PUT",
                *place,
                body=body,
                headers=_condition(expected),
                # once the first attempt has succeeded, the condition no longer holds
                repeatable=expected is None,
                check_hint=_check_hint(name, alias),
            )
        )

    @call
    def rollback(
        self,
        name: str,
        *,
        alias: str = "production",
        reason: str = "",
        expected: int | None = None,
    ) -> Flow[Alias]:
        """Undo the last move of an alias; a second call undoes the move before that.

        ``expected`` is the last known revision; if the alias has moved since, the call fails with
        ``alias_has_moved``.
        """
        if expected == 0:
            raise ValueError("expected must be the revision to undo (1 or more), got 0")
        place = ("calibrators", checked_name(name), "aliases", alias, "rollback")
        return (
            yield from self.request_record(
                Alias,
                "POST",
                *place,
                body={"reason": reason},
                headers=_condition(expected),
                check_hint=_check_hint(name, alias),
            )
        )

    @call
    def history(
        self, name: str, *, alias: str = "production", limit: int | None = None
    ) -> Flow[list[Move]]:
        """List the moves of an alias, newest first."""
        place = ("calibrators", checked_name(name), "aliases", alias, "history")
        return (yield from self.request_all(Move, *place, limit=limit))

    @call
    def get_alias(self, name: str, alias: str = "production") -> Flow[Alias]:
        """Return an alias with the version it points at."""
        place = ("calibrators", checked_name(name), "aliases", alias)
        return (yield from self.request_record(Alias, "GET", *place))


def _condition(expected: int | None) -> dict[str, str]:
    """Return the precondition header for a revision; 0 requires that the alias does not exist."""
    if expected is None:
        return {}
    return {"If-Match": f'"{expected}"'} if expected else {"If-None-Match": "*"}


def _check_hint(name: str, alias: str) -> str:
    return f"client.history({name!r}, alias={alias!r}) shows whether the alias has moved"
