"""A time limit for statements on SQLite, which has none of its own."""

from __future__ import annotations

import math
import time
from typing import Any

from sqlalchemy import Connection, Engine, event

# operations of SQLite's virtual machine between two looks at the clock: some milliseconds
LOOK_EVERY = 50_000
UNLIMITED = "unlimited"  # the execution option of connections without the limit


def limit_statements(engine: Engine, seconds: float) -> None:
    """Interrupt statements on an engine that take longer, with their rows (SQLITE_INTERRUPT)."""

    @event.listens_for(engine, "connect")
    def _watch(connection: Any, record: Any) -> None:
        facts = record.info
        facts["deadline"] = math.inf
        connection.set_progress_handler(lambda: time.monotonic() > facts["deadline"], LOOK_EVERY)

    @event.listens_for(engine, "before_cursor_execute")
    def _begin(connection: Connection, *_: Any) -> None:
        is_limited = not connection.get_execution_options().get(UNLIMITED, False)
        connection.info["deadline"] = time.monotonic() + seconds if is_limited else math.inf
