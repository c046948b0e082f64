"""JSON bodies, parsed within time and memory budgets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson

from service.concurrency.thread_pools import parsing_turn
from service.errors import Invalid, Malformed, TooLarge

Bytes = bytes | memoryview

# The parser holds the GIL until it has finished, and the objects that it creates take memory. The
# budget allows 1.5 million numbers: about 0.1 s and 100 MB.
MAX_COST = 1_500_000
MAX_DEPTH = 32
# cost of each character that introduces a value, a list, an object or a key
COSTS = {b",": 1, b"[": 5, b"{": 3, b":": 2}
_BLOCK = 1 << 20
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parse(body: Bytes, *, most_cost: int = MAX_COST) -> Any:
    """Parse a JSON document; reject NaN, Infinity, numbers beyond float64 and deep nesting.

    A document that could contain more values than the budget allows is rejected before parsing.
    """
    check_cost(body, most_cost)
    check_depth(body)
    try:
        with parsing_turn(len(body)):
            return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed("malformed_json", f"the body is not valid JSON: {error}") from error


def check_cost(body: Bytes, most: int = MAX_COST) -> None:
    """Raise TooLarge if a JSON document may contain more values, lists and objects than allowed.

    Characters inside strings are counted as well, which keeps the check within milliseconds.
    """
    if max(COSTS.values()) * len(body) <= most:
        return
    text = bytes(body)
    if sum(text.count(character) * cost for character, cost in COSTS.items()) > most:
        raise TooLarge(
            "too_many_values",
            f"the JSON contains too many values: their total cost must be at most {most} (a number"
            " costs 1, a list 6, a key 3, an object 4). Send fewer values, or send arrays as npy,"
            " npz or safetensors",
            limit=most,
        )


def check_depth(body: Bytes, most: int = MAX_DEPTH) -> None:
    """Raise Invalid if the brackets of a JSON document are nested too deeply."""
    text, depth = bytes(body), 0
    if text.count(b"[") + text.count(b"{") <= most:
        return
    for block in _without_strings(text):
        brackets = block.translate(None, _NO_BRACKETS)
        # this bit distinguishes ] and } from [ and {
        closing = np.right_shift(np.frombuffer(brackets, np.uint8), 2) & 1
        depths = depth + np.cumsum(1 - 2 * closing.astype(np.int32))
        if depths.size:
            if depths.max() > most:
                raise _too_deep(most)
            depth = int(depths[-1])


def _without_strings(text: bytes) -> Iterator[bytes]:
    r"""Yield a JSON document block by block, without the contents of its strings.

    >>> list(_without_strings(b'{"a[": "\\\"["}'))
    [b'{": "}']
    """
    start, is_inside = 0, False
    while start < len(text):
        end = start + _BLOCK
        while text[end - 1 : end] == b"\\":  # so that no block ends within an escape
            end += 1
        block, start = text[start:end], end
        if is_inside or b'"' in block:
            # backslashes occur only in strings, and escaped quotes do not end a string
            plain = block.replace(b"\\\\", b"").replace(b'\\"', b"")
            characters = np.frombuffer(plain, np.uint8)
            quotes = np.cumsum(characters == ord('"'), dtype=np.int32) + is_inside
            block = characters[(quotes & 1) == 0].tobytes()
            is_inside = bool(quotes[-1] & 1) if quotes.size else is_inside
        yield block


def check_shape(document: Any, most_values: int, most_depth: int = MAX_DEPTH) -> None:
    """Raise TooLarge or Invalid if a document has too many values or is nested too deeply."""
    values, waiting = 0, [(document, 0)]
    while waiting:
        value, depth = waiting.pop()
        if not isinstance(value, (dict, list)):
            continue
        values += len(value)
        if values > most_values:
            raise TooLarge(
                "too_many_values",
                f"the JSON contains more than {most_values} values: send fewer",
                limit=most_values,
            )
        if depth > most_depth:
            raise _too_deep(most_depth)
        inner = value.values() if isinstance(value, dict) else value
        waiting += [(one, depth + 1) for one in inner if isinstance(one, (dict, list))]


def _too_deep(most: int) -> Invalid:
    return Invalid("too_deep", f"lists and objects may be nested at most {most} levels deep")
