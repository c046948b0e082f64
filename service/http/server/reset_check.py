"""Check whether a client has reset its connection."""

from __future__ import annotations

import select


def has_left(file: int) -> bool:
    """Return whether the client of a socket has reset the connection."""
    poller = select.poll()
    poller.register(file, 0)  # errors are always reported
    return bool(poller.poll(0))
