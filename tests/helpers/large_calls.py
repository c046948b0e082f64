"""The executor of large calls for tests of a single route."""

from __future__ import annotations

from service.concurrency.thread_pools import FairExecutor
from service.serving.apply_map import LargeCalls


def large_calls() -> LargeCalls:
    """Return an executor like that of a service."""
    return LargeCalls(FairExecutor("apply", 2))
