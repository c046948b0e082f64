"""Where large calls run in tests of a single route."""

from __future__ import annotations

from service.concurrency.thread_pools import FairExecutor
from service.serving.apply_map import LargeCalls


def large_calls() -> LargeCalls:
    """Return the executor that a service has."""
    return LargeCalls(FairExecutor("apply", 2))
