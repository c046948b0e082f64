"""How often a fault is made: all of it in ``make test-faults``, a little in ``make test``."""

from __future__ import annotations

import os

import pytest

IS_FULL = os.environ.get("CALIBRD_TEST_FAULTS") == "full"


def times(full: int, quick: int) -> int:
    """How often to make a fault in this run."""
    return full if IS_FULL else quick


def on(*backends: str) -> pytest.MarkDecorator:
    """Run a test on these backends."""
    return pytest.mark.parametrize("backend", backends, indirect=True)


on_both = on("fleet", "embedded")
# the storage tests do the same to SQLite, a little of it
on_both_if_full = on_both if IS_FULL else on("fleet")
