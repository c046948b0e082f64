"""Exponential backoff for retries in the SDK and the service."""

from __future__ import annotations

import random


class Backoff:
    """Pauses that double up to ``longest``, each shortened by a random share of up to ``jitter``.

    >>> backoff = Backoff(first=1.0, longest=3.0, jitter=0.0)
    >>> backoff.pause(), backoff.pause(), backoff.pause(), backoff.is_first
    (1.0, 2.0, 3.0, False)
    >>> 0.5 <= Backoff(first=1.0).pause() <= 1
    True
    """

    def __init__(self, first: float = 0.2, longest: float = 5.0, *, jitter: float = 0.5) -> None:
        self._first = first
        self._longest = longest
        self._jitter = jitter
        self._next = first

    @property
    def is_first(self) -> bool:
        """True if nothing has failed since the last reset."""
        return self._next == self._first

    def pause(self, at_most: float | None = None) -> float:
        """Return the seconds to wait before the next attempt."""
        limit = self._longest if at_most is None else at_most
        seconds = min(self._next, limit)
        self._next = min(2 * seconds, limit)
        return random.uniform(seconds * (1 - self._jitter), seconds)  # noqa: S311 - no secret

    def reset(self) -> None:
        """Return to the first pause; call this after a success."""
        self._next = self._first
