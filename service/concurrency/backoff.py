"""Exponential backoff between retries."""

from __future__ import annotations


class Backoff:
    """Pauses that double up to a maximum.

    >>> backoff = Backoff(first=1.0, longest=3.0)
    >>> backoff.pause(), backoff.pause(), backoff.pause(), backoff.is_first
    (1.0, 2.0, 3.0, False)
    """

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    @property
    def is_first(self) -> bool:
        """Whether nothing has failed since the last reset."""
        return self._next == self._first

    def pause(self) -> float:
        """Return the seconds to wait before the next attempt."""
        seconds, self._next = self._next, min(2 * self._next, self._longest)
        return seconds

    def reset(self) -> None:
        """Start again with the first pause, after a success."""
        self._next = self._first
