"""A server that responds to every request at once; its delays are those of the machine."""

from __future__ import annotations

import asyncio
import sys

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Answering(asyncio.Protocol):
    """A connection that is answered at once."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Store the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Send a response."""
        self.transport.write(ANSWER)


async def main() -> None:
    """Print the port and serve until killed."""
    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
