"""Promote, roll back, and who did so when."""

from __future__ import annotations

from calibrd.calls.versions import VersionCalls
from calibrd.flows import Flow, call
from calibrd.references import Reference
from calibrd.results import Alias, Move, Version


class AliasCalls(VersionCalls):
    """Calls about aliases."""

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
        """Point an alias of a calibrator at a version: its number, or where another alias points.

        A version judged ``worse`` or ``insufficient_data``, or not judged, needs ``force`` and a
        ``reason``. With ``expected``, the revision last seen (0: there is none yet), the move is
        refused with AliasHasMoved if somebody else moved it since.
        """
        if isinstance(version, Version) and version.calibrator != name:
            raise ValueError(f"{version.reference} is no version of {name!r}")
        wanted = version.number if isinstance(version, Version) else version
        number = yield from self.number_at(Reference.of(f"{name}@{wanted}"))
        headers = {}
        if expected is not None:
            headers = {"If-Match": f'"{expected}"'} if expected else {"If-None-Match": "*"}
        body = {"version": number, "reason": reason, "force": force}
        place = ("calibrators", name, "aliases", alias)
        return (
            yield from self.ask_for(
                Alias,
                "PUT",
                *place,
                body=body,
                headers=headers,
                # a condition that held the first time does not hold again
                repeatable=expected is None,
                look=_look(name, alias),
            )
        )

    @call
    def rollback(self, name: str, *, alias: str = "production", reason: str = "") -> Flow[Alias]:
        """Take back the last move of an alias; again, the one before that."""
        place = ("calibrators", name, "aliases", alias, "rollback")
        body, look = {"reason": reason}, _look(name, alias)
        return (yield from self.ask_for(Alias, "POST", *place, body=body, look=look))

    @call
    def history(
        self, name: str, *, alias: str = "production", limit: int | None = None
    ) -> Flow[list[Move]]:
        """The moves of an alias, newest first."""
        place = ("calibrators", name, "aliases", alias, "history")
        return (yield from self.ask_for_all(Move, *place, limit=limit))

    @call
    def get_alias(self, name: str, alias: str = "production") -> Flow[Alias]:
        """Where an alias points."""
        return (yield from self.ask_for(Alias, "GET", "calibrators", name, "aliases", alias))


def _look(name: str, alias: str) -> str:
    return f"client.history({name!r}, alias={alias!r}) says whether the alias has moved"
