"""Description of a method's fallback to temperature scaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def fallback_sentence(info: Mapping[str, Any]) -> str:
    """Return a sentence that states which method fell back and why; empty if none did.

    ``info`` is a map's ``fit_info``. Unexpected values, as in an untrusted map, are ignored.

    >>> fallback_sentence({"fallback": {"method": "vector", "reason": "all logits are equal"}})
    'vector fell back to temperature scaling: all logits are equal'
    >>> fallback_sentence({})
    ''
    """
    match info.get("fallback"):
        case {"method": str() as method, "reason": str() as reason}:
            return f"{method} fell back to temperature scaling: {reason}"
    return ""
