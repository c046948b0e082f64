"""Open connections per address, and which are closed to make room for new ones."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import pytest
from helpers.live_service import Local, wait_until

from service.http.middleware.auth import Guard
from service.http.middleware.fair_turns import ClientLeft, Turn, Turns
from service.http.server.connections import MAX_HEAD_BYTES, MAX_HEAD_BYTES_OF_ONE, Connections
from service.http.server.listener import SERVED_AT_ONCE, ConnectionListener
from service.http.server.protocol import HttpProtocol


class Line:
    """A connection that records whether it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def drop(self) -> None:
        self.is_closed = True


def opened(connections: Connections, address: str, count: int) -> list[Line]:
    lines = [Line() for _ in range(count)]
    for one in lines:
        connections.add(one, address)
    return lines


def test_beyond_the_limit_of_an_address_its_oldest_idle_connection_is_closed() -> None:
    connections = Connections(3, 100)
    first, second, third = opened(connections, "a", 3)
    other = opened(connections, "b", 1)[0]
    connections.set_busy(first, "a")
    (fourth,) = opened(connections, "a", 1)
    assert [one.is_closed for one in (first, second, third, fourth, other)] == [
        False,
        True,
        False,
        False,
        False,
    ]
    connections.remove(second, "a")
    (fifth,) = opened(connections, "a", 1)
    assert (third.is_closed, fifth.is_closed) == (True, False)


def test_the_new_connection_is_closed_if_none_is_idle() -> None:
    connections = Connections(2, 100)
    lines = opened(connections, "a", 2)
    for one in lines:
        connections.set_busy(one, "a")
    (new,) = opened(connections, "a", 1)
    assert new.is_closed
    assert not any(one.is_closed for one in lines)
    connections.remove(new, "a")
    connections.remove(lines[0], "a")
    assert not opened(connections, "a", 1)[0].is_closed


def test_near_the_total_limit_the_largest_user_loses_connections() -> None:
    connections = Connections(100, 5)
    many = opened(connections, "a", 4)
    few = opened(connections, "b", 3)
    assert [one.is_closed for one in many] == [True, True, False, False]
    assert not any(one.is_closed for one in few)


def test_heads_of_an_address_have_a_limit_together() -> None:
    connections = Connections(100, 100)
    first, second, other = Line(), Line(), Line()
    assert connections.hold_head(first, "a", MAX_HEAD_BYTES_OF_ONE)
    assert not connections.hold_head(second, "a", 1)
    assert connections.hold_head(other, "b", 1)
    assert connections.hold_head(first, "a", 0)


def test_addresses_that_fill_the_memory_for_heads_lose_theirs_to_others() -> None:
    """Four addresses used to take all of it, and others then got 503 for the smallest head."""
    connections = Connections(100, 1000)
    size = MAX_HEAD_BYTES_OF_ONE // 10
    count = MAX_HEAD_BYTES // size
    many = [(one, f"a{n % 5}") for n in range(count) for one in opened(connections, f"a{n % 5}", 1)]
    assert all(connections.hold_head(one, address, size) for one, address in many)
    small = opened(connections, "b", 50)
    assert all(connections.hold_head(one, "b", 20_000) for one in small)
    assert not any(one.is_closed for one in small)
    closed = [one for one, _ in many if one.is_closed]
    assert 0 < len(closed) < count
    for one, address in [*many, *((one, "b") for one in small)]:
        connections.hold_head(one, address, 0)
        connections.remove(one, address)
    assert (connections._all_head_bytes, connections._total) == (0, 0)


def reset(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()


def test_requests_of_reset_connections_do_not_wait_for_a_turn(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They used to wait as tasks that nothing counted: 1.7 GB after 45 s of 4,000 per second."""
    waiting: list[asyncio.Future[bool]] = []

    def place(self: Turns, owner: str) -> asyncio.Future[bool]:
        waiting.append(asyncio.get_running_loop().create_future())
        self._waiting.add(owner, waiting[-1])
        return waiting[-1]

    address = (local.base_url.host, local.base_url.port)
    with monkeypatch.context() as patch:
        patch.setattr(Turns, "place", place)  # a queue that does not advance
        lines = [socket.create_connection(address) for _ in range(50)]
        for line in lines:
            line.sendall(b"GET /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        wait_until(lambda: len(waiting) == 50)
        for line in lines:
            reset(line)
        wait_until(lambda: all(one.done() for one in waiting))
        guard = find_guard(local.app)
        assert not guard._turns._waiting
    assert local.get("/v1/runs").status_code == 200


def find_guard(app: Any) -> Guard:
    """Return the guard among the middleware of an app."""
    layer = app.middleware_stack
    while not isinstance(layer, Guard):
        layer = layer.app
    return layer


def test_requests_that_left_keep_nothing_behind_those_that_wait() -> None:
    """Their heads used to stay in memory until all that wait at another address had a turn."""
    heads: WeakSet[Head] = WeakSet()

    async def request(turns: Turns, owner: str, turn: Turn) -> None:
        head = Head()
        heads.add(head)
        with suppress(ClientLeft):
            await turn.take()

    async def run() -> None:
        turns = Turns()
        live = [Turn(turns, "address 1") for _ in range(300)]
        dead = [Turn(turns, "address 2") for _ in range(200)]
        tasks = [asyncio.create_task(request(turns, one.owner, one)) for one in (*live, *dead)]
        await asyncio.sleep(0)
        for one in dead:
            one.leave()
        await asyncio.gather(*tasks[300:])
        gc.collect()
        assert len(heads) <= 300
        assert len(turns._waiting._groups["address "]) == 1
        await asyncio.gather(*tasks)
        assert not turns._waiting

    asyncio.run(asyncio.wait_for(run(), 20))


class Head:
    """Something that a waiting request keeps in memory."""


def test_addresses_take_turns_when_connections_arrive_faster_than_they_are_served() -> None:
    """A flood of connections from one address used to delay all others behind it."""
    served: list[str] = []

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
            listener = ConnectionListener(listening, lambda: Recorder(served))
            flood = [connected(listening, "127.0.0.2") for _ in range(300)]
            one = connected(listening, "127.0.0.3")
            gone = [connected(listening, "127.0.0.4") for _ in range(20)]
            for line in gone:
                reset(line)
            while len(served) < 301:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            listener.close()
            for line in (*flood, one):
                line.close()

    asyncio.run(asyncio.wait_for(run(), 20))
    assert len(served) == 301  # not those that were reset
    assert served.index("127.0.0.3") < 3 * SERVED_AT_ONCE


def connected(listening: socket.socket, source: str) -> socket.socket:
    return socket.create_connection(listening.getsockname(), source_address=(source, 0))


class Recorder(asyncio.Protocol):
    """A protocol that records the addresses of connections in the order they are served."""

    is_crowded = is_in_body = False

    def __init__(self, served: list[str]) -> None:
        self._served = served

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._served.append(transport.get_extra_info("peername")[0])

    def eof_received(self) -> None:
        pass


def test_empty_lines_after_a_response_do_not_keep_a_connection_open(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpProtocol, "head_seconds", 0.3)
    with socket.create_connection((local.base_url.host, local.base_url.port), timeout=5) as line:
        line.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert line.recv(4096).startswith(b"HTTP/1.1 200")
        line.sendall(b"\r\n")
        while line.recv(4096):
            pass
