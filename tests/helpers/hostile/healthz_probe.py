"""Request ``/healthz`` every 20 ms and report the latency of each response.

The arguments are the ports of the service and of a control. Both get requests at the same moments,
each over an idle connection or a new one, whether or not earlier requests have been answered: a
stall of a second causes fifty late responses. The control is a server that does nothing else, so
its delays are the machine's. At the end of its input, the process prints the latencies as JSON and
exits.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

PERIOD = 0.02
GIVE_UP_SECONDS = 60.0
OK = b"200"
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ProbedServer:
    """A server that gets requests, and its latencies by the time at which they were due."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Connection] = []
        self.found: list[tuple[float, float]] = []

    async def ask(self, due: float) -> None:
        """Send a request, and record the time from when it was due until its response."""
        # unless there is a response, because a dead service must not count as fast
        took = GIVE_UP_SECONDS
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                connection = await self._connection()
                if await self._exchange(*connection) == OK:
                    took = time.monotonic() - due
                self._idle.append(connection)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the next request opens another connection
        self.found.append((due, took))

    async def _connection(self) -> Connection:
        if self._idle:
            return self._idle.pop()
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        await reader.readexactly(length)
        return head[9:12]


async def main(ports: list[int]) -> None:
    """Send requests to all servers until the input ends."""
    asked = [ProbedServer(port) for port in ports]
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    tick, tasks = time.monotonic(), set()
    while not ended.done():
        tick += PERIOD
        await asyncio.sleep(max(0.0, tick - time.monotonic()))
        for one in asked:
            task = asyncio.create_task(one.ask(tick))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    if tasks:
        await asyncio.wait(tasks, timeout=GIVE_UP_SECONDS)
    sys.stdout.write(json.dumps([sorted(one.found) for one in asked]))
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main([int(port) for port in sys.argv[1:]]))
