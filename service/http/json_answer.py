"""JSON responses with long lists, serialised in blocks so that no call holds the GIL for long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

# a block is serialised in about a millisecond
BLOCK_NUMBERS = 1 << 14


def write(document: dict[str, Any], **lists: Iterable[Any]) -> bytes:
    """Return a JSON object with the fields of a document, plus lists that are given in blocks.

    >>> write({"a": 1}, b=blocks(np.arange(3)), c=[])
    b'{"a":1,"b":[0,1,2],"c":[]}'
    """
    text = _dumps(document)[:-1]
    parts = [text]
    for name, list_blocks in lists.items():
        parts += [b"," if len(text) > 1 or len(parts) > 1 else b"", _dumps(name), b":["]
        items = (_dumps(block)[1:-1] for block in list_blocks)
        parts += [b",".join(one for one in items if one), b"]"]
    return b"".join([*parts, b"}"])


def blocks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the rows of an array in blocks."""
    step = max(1, BLOCK_NUMBERS * len(array) // max(1, array.size))
    for start in range(0, len(array), step):
        yield np.ascontiguousarray(array[start : start + step])


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
