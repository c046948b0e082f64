"""What the routes that apply maps have in common: predict, and infer under /v2."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from service.access.permissions import Principal
from service.concurrency.thread_pools import FairExecutor
from service.datasets.formats.layout import Array
from service.errors import Conflict, Invalid, TooLarge
from service.serving.map_cache import Served
from service.serving.prediction import model_mismatch

MODEL_HEADER = "Calibrd-Model"
SHOWN_MODEL = 80

P = ParamSpec("P")
T = TypeVar("T")

Find = Callable[[Principal, str, str], Served | None]
Load = Callable[[Principal, str, str], Awaitable[Served]]

# more than this would hold up the event loop for milliseconds, and with it all other callers
INLINE_BYTES = 1 << 18
INLINE_JSON_BYTES = 1 << 14
INLINE_QUERY_BYTES = 1 << 12
INLINE_COST = 1 << 15
# in numbers that a softmax takes, of about 20 ns: a row, and what it takes to write out
ROW_COST = 8
JSON_COST = 4
TOP_ROW_COST = 64

# a float32 and a float64 as JSON: the digits that give it back exactly, point, exponent, comma
JSON_BYTES = {4: 12, 8: 20}


def is_quick(served: Served, values: Array, *, writes_json: bool, top: int | None = None) -> bool:
    """Return whether an answer is made in less time than a change of threads is worth."""
    rows = len(values) if values.ndim > 1 else 1
    numbers = rows * served.map.k
    cost = values.size + numbers + rows * (ROW_COST + served.map.row_cost)
    if top is not None:
        cost += numbers + rows * TOP_ROW_COST
    if writes_json:
        cost += JSON_COST * (numbers if top is None else rows * min(top, served.map.k))
    return cost <= INLINE_COST


@dataclass(frozen=True)
class LargeCalls:
    """Where calls run that are too large for the event loop."""

    executor: FairExecutor

    async def run(
        self, principal: Principal, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return what the call returns, off the event loop."""
        return await self.executor.run(principal.workspace, call, *args, **kwargs)


def check_answer(size: int, limit: int, advice: str) -> None:
    """Refuse an answer that is too large, by what it would have and before it is calculated."""
    if size > limit:
        raise TooLarge(
            "answer_too_large",
            f"the answer would have about {size} bytes, at most {limit} are sent: {advice}",
            limit=limit,
        )


def model_in_header(value: bytes) -> str:
    """A fingerprint as a header has it: UTF-8 as most clients send it, or else Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def check_model(served: Served, stated: Collection[str], *, only_warn: bool) -> str | None:
    """Refuse the values of another model than the map was fitted for; or the warning of it.

    ``stated`` are the fingerprints given in all places where one can be given.
    """
    if not stated:
        return None
    model, *others = set(stated)
    if others:
        raise Invalid(
            "two_models",
            f"two different fingerprints of the model are given ({MODEL_HEADER}, the parameter "
            "model): send one",
        )
    if not model:
        raise Invalid(
            "bad_parameter", "the model's fingerprint must not be empty: give it or leave it out"
        )
    mismatch = model_mismatch(served, model)
    if mismatch is None:
        return None
    if only_warn:
        return f"model_mismatch; {mismatch}"
    raise Conflict(
        "model_mismatch",
        f"{mismatch}: send that model's values, or ask with fingerprint=warn",
        expected=served.model,
        got=model[:SHOWN_MODEL],
    )


def warning_header(warning: str) -> tuple[bytes, bytes]:
    """The header that tells a caller something of the answer: a code and a sentence, in ASCII."""
    return b"calibrd-warning", warning.encode("ascii")
