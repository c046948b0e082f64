"""Bodies on their way to disk."""

from __future__ import annotations

from starlette.requests import Request

from service.concurrency.thread_pools import Runner
from service.datasets.spool import Landing

BLOCK = 1 << 18


async def land(request: Request, landing: Landing, run: Runner) -> None:
    """Write a request's body to disk in blocks, off the event loop, whatever its size."""
    pending = bytearray()
    async for piece in request.stream():
        pending += piece
        if len(pending) >= BLOCK:
            await run(landing.write, bytes(pending))
            pending.clear()
    if pending:
        await run(landing.write, bytes(pending))
