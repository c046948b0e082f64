"""Fair turns on the event loop: the requests of one caller start one after another."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Generic, TypeVar

from starlette.types import Scope

TURN = "turn"
ADDRESS = "address "
T = TypeVar("T", bound=Hashable)
# answered from memory faster than a turn is granted, the last two once a second from a probe
UNTIMED = frozenset({"/healthz", "/v2/health/live", "/readyz", "/v2/health/ready"})


def group_of(owner: str) -> str:
    """Return the group in which an owner takes turns; all callers without a key share one.

    Anyone can use many addresses, so an address does not get a turn of its own.
    """
    return ADDRESS if owner.startswith(ADDRESS) else owner


class RoundRobin(Generic[T]):
    """A queue of items in which groups take turns, as do the owners within a group.

    >>> queue = RoundRobin()
    >>> for owner, item in [("a", 1), ("a", 2), ("address 1", 3), ("address 2", 4)]:
    ...     queue.add(owner, item)
    >>> [queue.pop() for _ in range(4)]
    [1, 3, 2, 4]
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, OrderedDict[T, None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, owner: str, item: T) -> None:
        """Add an item at the end of its owner's queue."""
        owners = self._groups.setdefault(group_of(owner), {})
        owners.setdefault(owner, OrderedDict())[item] = None

    def remove(self, owner: str, item: T) -> None:
        """Remove an item, if it is still waiting."""
        group = group_of(owner)
        owners = self._groups.get(group, {})
        items = owners.get(owner, OrderedDict())
        items.pop(item, None)
        if owner in owners and not items:
            del owners[owner]
        if group in self._groups and not owners:
            del self._groups[group]

    def pop(self, group: str | None = None) -> T:
        """Return the next item, of the given group or of the one whose turn it is."""
        return self.pop_with_owner(group)[1]

    def pop_with_owner(self, group: str | None = None) -> tuple[str, T]:
        """Return the next item and its owner."""
        if group is None:
            group = next(iter(self._groups))
        owners = self._groups.pop(group)
        owner = next(iter(owners))
        items = owners.pop(owner)
        item, _ = items.popitem(last=False)
        if items:
            owners[owner] = items
        if owners:
            self._groups[group] = owners
        return owner, item

    def __contains__(self, group: str) -> bool:
        return group in self._groups


class Turns:
    """A scheduler that runs one request per caller in each pass of the event loop.

    However many requests of one caller are ready at once, other callers' requests and the loop's
    own reads and writes run in between. All callers without a key count as one.
    """

    def __init__(self) -> None:
        self.number = 0
        self._running: set[str] = set()
        self._waiting: RoundRobin[asyncio.Future[bool]] = RoundRobin()

    async def take(self, owner: str) -> None:
        """Wait for a turn in which no other request of the owner runs."""
        if (mine := self.place(owner)) is not None:
            await mine

    def place(self, owner: str) -> asyncio.Future[bool] | None:
        """Return a future that becomes True in the owner's turn; None if the turn is now."""
        group, loop = group_of(owner), asyncio.get_running_loop()
        if group not in self._running:
            if not self._running:
                loop.call_soon(self._begin_next)
            self._running.add(group)
            return None
        mine = loop.create_future()
        self._waiting.add(owner, mine)
        return mine

    def leave(self, owner: str, place: asyncio.Future[bool]) -> None:
        """Give up a place: its future becomes False."""
        self._waiting.remove(owner, place)
        if not place.done():
            place.set_result(False)

    def _begin_next(self) -> None:
        """Begin a turn: wake one waiting request of each group."""
        self.number += 1
        for group in list(self._running):
            if not self._wake_one(group):
                self._running.discard(group)
        if self._running:
            asyncio.get_running_loop().call_soon(self._begin_next)

    def _wake_one(self, group: str) -> bool:
        """Wake the next waiting request of a group; return whether there was one."""
        while group in self._waiting:
            request = self._waiting.pop(group)
            if not request.done():  # else the client has left
                request.set_result(True)
                return True
        return False


class ClientLeft(Exception):
    """The client left before the request had its first turn."""


class Turn:
    """The turn of one request among the requests of its caller."""

    __slots__ = ("_number", "_place", "_turns", "owner")

    def __init__(self, turns: Turns, owner: str) -> None:
        self._turns = turns
        self.owner = owner
        self._number = -1
        self._place: asyncio.Future[bool] | None = None

    async def take(self) -> None:
        """Wait for a turn, unless the request already has the current one.

        Raises ClientLeft if the client leaves before the first turn: a request that waits would
        keep its head in memory.
        """
        if self._number == self._turns.number:
            return
        place = self._turns.place(self.owner)
        if place is not None:
            if self._number < 0:
                self._place = place
            has_turn = await place
            self._place = None
            if not has_turn:
                raise ClientLeft
        self._number = self._turns.number

    def leave(self) -> None:
        """End the wait for the first turn: the client has left."""
        if self._place is not None:
            self._turns.leave(self.owner, self._place)


async def take_turn(scope: Scope) -> None:
    """Wait for a turn before long work on the event loop, such as parsing a body."""
    turn: Turn | None = scope.get(TURN)
    if turn is not None:
        await turn.take()


def owner_of(scope: Scope) -> str:
    """Return the workspace or address whose limits a request counts towards."""
    principal = scope.get("principal")
    if principal is not None:
        return f"workspace {principal.workspace}"
    return f"{ADDRESS}{network_of((scope.get('client') or ('unknown',))[0])}"


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """Return an address, or for IPv6 its network of 64 bits, which usually has one owner.

    >>> network_of("192.0.2.7"), network_of("2001:db8:0:1::7"), network_of("unknown")
    ('192.0.2.7', '2001:db8:0:1::', 'unknown')
    """
    if ":" not in address:
        return address
    try:
        found = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    own = found.ipv4_mapped
    return str(own or IPv6Address(int(found) >> 64 << 64))


def is_untimed(scope: Scope) -> bool:
    """Return whether a request is a health check, which does not wait for a turn."""
    return scope["path"] in UNTIMED and scope["method"] in ("GET", "HEAD")
