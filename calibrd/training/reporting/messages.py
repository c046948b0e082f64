"""What is sent of a run: how a session begins, and its validation passes."""

from __future__ import annotations

import base64
import re
import secrets
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from calibrators.adafocal import AdaFocalState, BinStatistics, Settings

Kind = Literal["adafocal", "monitor"]

# the service takes 100, of which some are for what is added where a session goes on as another
SESSION = re.compile(r"[A-Za-z0-9._-]{1,80}")


@dataclass(frozen=True)
class Start:
    """Where a run goes on: after ``step``; with a state, unless it only monitors."""

    step: int = 0
    state: AdaFocalState | None = None


@dataclass(frozen=True)
class Plan:
    """How a session of a run is opened.

    ``start`` is None where the service knows better. ``base`` is the step before the first pass,
    if that is not where it starts.
    """

    run: str
    kind: Kind
    settings: Settings | None
    rank: int
    world_size: int
    decides: str
    session: str
    start: Start | None
    base: int | None = None
    begun: float = field(default_factory=time.time)

    @property
    def before(self) -> int | None:
        """The step before the first pass, if it is known."""
        return self.start.step if self.base is None and self.start is not None else self.base

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        found = asdict(self)
        found["start"] = None
        if self.start is not None:
            state = self.start.state
            found["start"] = {"step": self.start.step, "state": state and state.to_dict()}
        return found

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Plan:
        """The plan that ``to_dict`` wrote."""
        given = dict(document)
        settings, start = given.pop("settings"), given.pop("start")
        return cls(
            settings=None if settings is None else Settings(**settings),
            start=None if start is None else Start(start["step"], state_of(start["state"])),
            **given,
        )


@dataclass(frozen=True)
class Pass:
    """A validation pass: its number in the session, its statistics as bytes, the state after it.

    ``before`` is the state before it, from which a session can go on if all else is lost. Both are
    None where they are for the service to say, and of monitors.
    """

    number: int
    statistics: bytes
    state: AdaFocalState | None = None
    before: AdaFocalState | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        text = base64.b64encode(self.statistics).decode()
        state, before = self.state and self.state.to_dict(), self.before and self.before.to_dict()
        return {"number": self.number, "statistics": text, "state": state, "before": before}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Pass:
        """The pass that ``to_dict`` wrote."""
        data = base64.b64decode(document["statistics"], validate=True)
        BinStatistics.from_bytes(data)  # which checks them
        state, before = state_of(document["state"]), state_of(document["before"])
        return cls(document["number"], data, state, before)


def state_of(document: dict[str, Any] | None) -> AdaFocalState | None:
    """A state from its JSON, if there is one."""
    return None if document is None else AdaFocalState.from_dict(document)


def kept_in(checkpoint: object, name: str) -> Any:
    """What a checkpoint has under a name; ValueError if it is none of this kind."""
    if not isinstance(checkpoint, dict) or name not in checkpoint:
        keys = list(checkpoint) if isinstance(checkpoint, dict) else type(checkpoint).__name__
        raise ValueError(f"a checkpoint must be a state_dict() with {name!r}, got {keys}")
    return checkpoint[name]


def step_in(checkpoint: object) -> int:
    """The step of a monitor's checkpoint; ValueError if it is none."""
    step = kept_in(checkpoint, "step")
    if not isinstance(step, int) or step < 0:
        raise ValueError(f"a checkpoint's step must be a whole number of 0 or more, got {step!r}")
    return step


def checked_session(session: str | None) -> str | None:
    """The id of a session, or None; ValueError for all else."""
    if session is not None and not SESSION.fullmatch(session):
        raise ValueError(
            "session must be of 1 to 80 letters A-Z and a-z, digits, '.', '_' and '-', "
            f"got {session!r}"
        )
    return session


def new_session() -> str:
    """An id that no other session has."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
