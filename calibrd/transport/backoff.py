"""Exponential backoff with jitter, for all retries of the SDK."""

from __future__ import annotations

import random

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0


class Backoff:
    """Pauses that double up to the longest, each drawn at random from the upper half of its range.

    >>> backoff = Backoff(first=1.0, longest=3.0)
    >>> [low <= backoff.pause() <= high for low, high in ((0.5, 1), (1, 2), (1.5, 3), (1.5, 3))]
    [True, True, True, True]
    """

    def __init__(self, first: float = FIRST_PAUSE, longest: float = LONGEST_PAUSE) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def pause(self, at_most: float | None = None) -> float:
        """Return the seconds to wait before the next try."""
        limit = self._longest if at_most is None else at_most
        seconds = min(self._next, limit)
        self._next = min(2 * seconds, limit)
        return random.uniform(seconds / 2, seconds)  # noqa: S311 - no secret

    def reset(self) -> None:
        """Start again with the first pause, after a successful try."""
        self._next = self._first
