"""What the routes that apply maps have in common: predict, and infer under /v2."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from service.core.access import Principal
from service.core.serving import Served
from service.errors import TooLarge

Find = Callable[[Principal, str, str], Served | None]
Load = Callable[[Principal, str, str], Awaitable[Served]]

# more than this would hold up the event loop, and with it all other callers
INLINE_BYTES = 1 << 20
INLINE_NUMBERS = 1 << 18

# a float32 and a float64 as JSON: the digits that give it back exactly, point, exponent, comma
JSON_BYTES = {4: 12, 8: 20}


def check_answer(size: int, limit: int, advice: str) -> None:
    """Refuse an answer that is too large, by what it would have and before it is calculated."""
    if size > limit:
        raise TooLarge(
            "answer_too_large",
            f"the answer would have about {size} bytes, at most {limit} are sent: {advice}",
            limit=limit,
        )
