"""Promote, roll back, and who did so when."""

from __future__ import annotations

from calibrd.api.references import Reference, checked_name
from calibrd.api.versions import VersionCalls
from calibrd.models import Alias, Move, Version
from calibrd.transport.flows import Flow, call


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
        ``reason``; so does one that measurably loses accuracy, against the model itself or against
        the version that the alias points at. With ``expected``, the revision last seen (0: there is
        none yet), the move is refused with ``alias_has_moved`` if somebody else moved it since.
        """
        checked_name(name)
        if isinstance(version, Version) and version.calibrator != name:
            raise ValueError(f"{version.reference} is no version of {name!r}")
        wanted = version.number if isinstance(version, Version) else version
        number = yield from self.number_at(Reference.of(f"{name}@{wanted}"))
        body = {"version": number, "reason": reason, "force": force}
        place = ("calibrators", name, "aliases", alias)
        return (
            yield from self.ask_for(
                Alias,
                "PUT",
                *place,
                body=body,
                headers=_condition(expected),
                # a condition that held the first time does not hold again
                repeatable=expected is None,
                look=_look(name, alias),
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
        """Take back the last move of an alias; again, the one before that.

        With ``expected``, the revision last seen, it is refused with ``alias_has_moved`` if
        somebody else moved the alias since.
        """
        if expected == 0:
            raise ValueError("expected must be a revision to take back, and there is none before 1")
        place = ("calibrators", checked_name(name), "aliases", alias, "rollback")
        headers, look = _condition(expected), _look(name, alias)
        body = {"reason": reason}
        return (
            yield from self.ask_for(Alias, "POST", *place, body=body, headers=headers, look=look)
        )

    @call
    def history(
        self, name: str, *, alias: str = "production", limit: int | None = None
    ) -> Flow[list[Move]]:
        """The moves of an alias, newest first."""
        place = ("calibrators", checked_name(name), "aliases", alias, "history")
        return (yield from self.ask_for_all(Move, *place, limit=limit))

    @call
    def get_alias(self, name: str, alias: str = "production") -> Flow[Alias]:
        """Where an alias points."""
        place = ("calibrators", checked_name(name), "aliases", alias)
        return (yield from self.ask_for(Alias, "GET", *place))


def _condition(expected: int | None) -> dict[str, str]:
    """The header that asks for a revision; 0 means that there is no such alias yet."""
    if expected is None:
        return {}
    return {"If-Match": f'"{expected}"'} if expected else {"If-None-Match": "*"}


def _look(name: str, alias: str) -> str:
    return f"client.history({name!r}, alias={alias!r}) says whether the alias has moved"
