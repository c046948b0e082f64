"""Request a path over many connections for a while: ``PORT TOKEN PATH N SECONDS``.

Each connection sends its next request as soon as it receives a response. The process prints the
statuses as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter


async def ask(port: int, request: bytes, end: float, statuses: Counter[str]) -> None:
    """Send requests over one connection until the end; reopen it when it is closed."""
    writer: asyncio.StreamWriter | None = None
    while time.monotonic() < end:
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            statuses[await read(reader)] += 1
        except (OSError, asyncio.IncompleteReadError):
            statuses["closed"] += 1
            writer = None
    if writer is not None:
        writer.close()


async def read(reader: asyncio.StreamReader) -> str:
    """Read a response and return its status."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"content-length:" in head:
        await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
    elif b"transfer-encoding: chunked" in head:
        while size := int((await reader.readline()).strip(), 16):
            await reader.readexactly(size + 2)
        await reader.readline()
    return head[9:12].decode()


async def main(port: int, token: str, path: str, connections: int, seconds: float) -> None:
    """Flood the server, and print the statuses."""
    key = f"Authorization: Bearer {token}"
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{key}\r\n\r\n".encode()
    statuses: Counter[str] = Counter()
    end = time.monotonic() + seconds
    await asyncio.gather(*(ask(port, request, end, statuses) for _ in range(connections)))
    sys.stdout.write(json.dumps(statuses))


if __name__ == "__main__":
    asyncio.run(
        main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
    )
