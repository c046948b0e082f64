"""Where large calls run in tests of a single route."""

from __future__ import annotations

from service.api.applying import LargeCalls
from service.core.executors import FairExecutor


def large_calls() -> LargeCalls:
    """Return the executor that a service has."""
    return LargeCalls(FairExecutor("apply", 2))
