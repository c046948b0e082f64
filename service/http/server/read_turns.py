"""Fair turns for connections whose requests take a long time to parse and start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter

from service.http.middleware.fair_turns import RoundRobin
from service.http.server.reset_check import has_left
from service.http.server.write_deadline import WriteDeadline

# time for parsing in one pass of the event loop
TURN_SECONDS = 0.005
# estimated time to start a request, which the parser only schedules on the loop
REQUEST_SECONDS = 0.0003
# health checks, which do not wait behind other requests
URGENT = (b"GET /healthz ", b"GET /readyz ", b"GET /v2/health/")
URGENT_BYTES = 512
MAX_URGENT = 50  # per pass
LEFTOVER_PAUSE = 0.05


class ReadTurns:
    """A limit on the time that parsing takes in one pass of the event loop.

    In one pass, the loop serves every connection that has received something. Once parsing has
    taken TURN_SECONDS, the remaining connections wait for the next pass. Workspaces then take
    turns; all callers without a key count as one workspace.
    """

    def __init__(self) -> None:
        self._waiting: RoundRobin[Callable[[], None]] = RoundRobin()
        self._spent = 0.0
        self._urgent = 0
        self._is_pass_planned = False

    @property
    def is_busy(self) -> bool:
        """True if connections are waiting."""
        return bool(self._waiting)

    @property
    def has_time(self) -> bool:
        """True if more may be parsed in this pass."""
        return not self._waiting and self._spent < TURN_SECONDS

    def may_parse(self, data: bytes) -> bool:
        """Return whether the data that a connection received may be parsed now."""
        if self.has_time:
            return True
        if not is_urgent(data):
            return False
        self._urgent += 1
        return self._urgent <= MAX_URGENT

    def count(self, seconds: float) -> None:
        """Add time that was or will be spent in this pass."""
        self._spent += seconds
        self._plan_pass()

    def wait(self, action: Callable[[], None], owner: str) -> None:
        """Call the action in a later pass, when it is its owner's turn."""
        self._waiting.add(owner, action)
        self._plan_pass()

    def _plan_pass(self) -> None:
        if not self._is_pass_planned:
            self._is_pass_planned = True
            asyncio.get_running_loop().call_soon(self._begin_pass)

    def _begin_pass(self) -> None:
        self._is_pass_planned = False
        self._spent, self._urgent = 0.0, 0
        while self._waiting:
            began = perf_counter()
            self._waiting.pop()()
            self.count(perf_counter() - began)
            if self._spent >= TURN_SECONDS:
                break


def is_urgent(data: bytes) -> bool:
    """Return whether the data is a single health check, with nothing after it."""
    if len(data) > URGENT_BYTES or not data.startswith(URGENT):
        return False
    return data.find(b"\r\n\r\n") == len(data) - 4


class TurnReader(WriteDeadline):
    """A connection that waits for its turn before it parses received data.

    Subclasses override ``parse`` and ``owner``, and may call ``slow_down``.
    """

    read_turns = ReadTurns()

    _unparsed = b""
    _is_slowed_down = False

    @property
    def owner(self) -> str:
        """The owner whose turns this connection uses."""
        return "all"

    @property
    def is_crowded(self) -> bool:
        """True if other connections are waiting to be parsed."""
        return self.read_turns.is_busy

    def data_received(self, data: bytes) -> None:
        """Parse the data now, or when it is this connection's turn."""
        if self._unparsed:
            self._unparsed += data
            self.transport.pause_reading()
        elif self.read_turns.may_parse(data):
            began = perf_counter()
            self.parse(data)
            self.read_turns.count(perf_counter() - began)
        else:
            self._unparsed = data
            self.transport.pause_reading()
            self.read_turns.wait(self.parse_waiting, self.owner)

    def parse(self, data: bytes) -> None:
        """Parse the received data."""
        super().data_received(data)

    def parse_waiting(self) -> None:
        """Parse the data that was waiting for its turn, and resume reading."""
        data, self._unparsed = self._unparsed, b""
        if self.transport.is_closing():
            return
        if self._is_reset():
            self.transport.abort()
            return
        self.parse(data)
        self._resume_reading()

    def _is_reset(self) -> bool:
        """Return whether the client has reset the connection; reading was paused, so ask."""
        connection = self.transport.get_extra_info("socket")
        return connection is not None and has_left(connection.fileno())

    def slow_down(self) -> None:
        """Pause reading for a moment, because no one is waiting for the remaining bytes."""
        self._is_slowed_down = True
        self.transport.pause_reading()
        self.loop.call_later(LEFTOVER_PAUSE, self._speed_up)

    def _speed_up(self) -> None:
        self._is_slowed_down = False
        self._resume_reading()

    def _resume_reading(self) -> None:
        """Resume reading, unless the connection is closing or reading must pause."""
        must_pause = self._unparsed or self._is_slowed_down or self.flow.read_paused
        if not must_pause and not self.transport.is_closing():
            self.transport.resume_reading()
