"""Sessions of a run: plans for opening them, starting positions, and validation passes."""

from __future__ import annotations

import json
import re
import secrets
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from calibrators.adafocal import AdaFocalState, Settings

Kind = Literal["adafocal", "monitor"]

# errors raised when reading a damaged document
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)
# the service allows 100; the rest leaves room for a suffix
SESSION = re.compile(r"[A-Za-z0-9._-]{1,80}")


@dataclass(frozen=True)
class Start:
    """The position from which a run continues: after ``step``, with ``state`` (None: monitor)."""

    step: int = 0
    state: AdaFocalState | None = None


@dataclass(frozen=True)
class SessionPlan:
    """The arguments for opening a session of a run.

    ``start`` is None if the service determines it. ``base`` is the step before the first pass, if
    different from ``start``.
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
        """The step before the first pass, if known."""
        return self.start.step if self.base is None and self.start is not None else self.base

    def opening(self, *, is_old: bool) -> dict[str, Any]:
        """Return the arguments of ``open_run``, with the start time only if the session is old."""
        names = ("kind", "settings", "world_size", "decides", "session")
        start = self.start or Start()
        needs_step = self.start is not None and start.state is None
        return {
            "name": self.run,
            **{name: getattr(self, name) for name in names},
            "state": start.state,
            "from_step": start.step if needs_step else None,
            "begun": self.begun if is_old else None,
        }

    def to_json(self) -> str:
        """Return the plan as JSON."""
        found = asdict(self)
        if self.start is not None:
            state = self.start.state
            found["start"] = {"step": self.start.step, "state": state and state.to_dict()}
        return json.dumps(found)

    @classmethod
    def from_json(cls, text: str) -> SessionPlan:
        """Parse the JSON of ``to_json``; raise one of UNREADABLE if it is damaged."""
        fields = dict(json.loads(text))
        settings, start = fields.pop("settings"), fields.pop("start")
        return cls(
            settings=None if settings is None else Settings(**settings),
            start=None if start is None else Start(start["step"], state_of(start["state"])),
            **fields,
        )


@dataclass(frozen=True)
class Pass:
    """A validation pass: its number in the session, serialised statistics, and the state after it.

    ``before`` is the state before the pass; a new session can continue from it if earlier passes
    are lost. Both states are None for monitors and in sessions where the service decides.
    """

    number: int
    statistics: bytes
    state: AdaFocalState | None = None
    before: AdaFocalState | None = None


def state_of(document: dict[str, Any] | None) -> AdaFocalState | None:
    """Return the state in a JSON document, or None for None."""
    return None if document is None else AdaFocalState.from_dict(document)


def checked_session(session: str | None) -> str | None:
    """Return the id of a session unchanged; raise ValueError if it is invalid."""
    if session is not None and not SESSION.fullmatch(session):
        raise ValueError(
            "session must be 1 to 80 characters from A-Z, a-z, 0-9, '.', '_' and '-', "
            f"got {session!r}"
        )
    return session


def new_session() -> str:
    """Return a unique session id."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
