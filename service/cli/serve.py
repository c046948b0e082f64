"""The command ``python -m service serve``."""

from __future__ import annotations

import argparse
import errno
import gc
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import uvicorn

from service import logs
from service.cli.open_store import check_writable, prepared
from service.cli.output import command_to_paste, say
from service.concurrency.malloc import share_heaps
from service.errors import Invalid
from service.http.server.listener import ConnectionListener
from service.settings import Settings
from service.storage.database import Database

if TYPE_CHECKING:
    from service.http.server.protocol import HttpProtocol
from pathlib import Path

KEEP_ALIVE_SECONDS = 75
# how long a computing thread may delay the event loop per ready socket; Python's default is 5 ms
SWITCH_SECONDS = 0.0001
GC_THRESHOLDS = (20_000, 20, 100)
SEND_BUFFER_BYTES = 1 << 17
EXIT_SECONDS = 1.0
EXIT_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(settings: Settings, options: argparse.Namespace) -> None:
    """Run the API until it is interrupted."""
    for number in EXIT_SIGNALS:
        signal.signal(number, lambda *_: sys.exit(0))
    logs.configure(settings.log_level, settings.log_format)
    share_heaps()
    listener = _listen(settings)
    port = listener.getsockname()[1]
    check_writable(settings.data_dir)  # for uploads, wherever the rest is stored
    with closing(prepared(settings)) as database:
        _check_exposure(settings, database, options)
    # imported late: no other command needs the web framework
    from service.app import create_app
    from service.http.server.protocol import protocol_with

    sys.setswitchinterval(SWITCH_SECONDS)
    _allow_many_connections()
    app = create_app(settings)
    server = _Server(
        uvicorn.Config(
            app,
            http=protocol_with(settings.response_timeout, settings.max_connections_per_address),
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=5,
        )
    )
    server.greeting = welcome(settings, port)
    server.most_of_one_address = settings.max_connections_per_address
    server.end_waiting = app.state.parts.end_waiting
    server.run(sockets=[listener])
    # at exit the interpreter waits for busy threads, such as one that checks a large upload
    forced = threading.Timer(EXIT_SECONDS, os._exit, (0,))
    forced.daemon = True
    forced.start()


class _Server(uvicorn.Server):
    """A server that prints a greeting when ready, and shuts down cleanly on repeated signals."""

    greeting: str
    most_of_one_address: int
    end_waiting: Callable[[], None]
    _listeners: tuple[ConnectionListener, ...] | list[ConnectionListener] = ()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        if self.started:
            self._listeners = [
                ConnectionListener(one, self._make_protocol, self.most_of_one_address)
                for one in sockets or []
            ]
            _reduce_garbage_collection()
            say(self.greeting)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.end_waiting()
        for one in self._listeners:
            one.close()
        await super().shutdown(sockets)

    def _make_protocol(self) -> HttpProtocol:
        make: Any = self.config.http_protocol_class
        made: HttpProtocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Shut down gracefully; uvicorn would abort on a second Ctrl-C and re-raise signals."""
        for number in EXIT_SIGNALS:
            signal.signal(number, self._exit)
        yield

    def _exit(self, *_: object) -> None:
        self.should_exit = True


def _allow_many_connections() -> None:
    """Raise the soft limit on open files, often 1,024 by default, to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _reduce_garbage_collection() -> None:
    """Exempt loaded objects from garbage collection, and collect less often.

    A collection blocks all requests; with thousands of connections, a full collection takes almost
    a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _check_exposure(settings: Settings, database: Database, options: argparse.Namespace) -> None:
    """Raise Invalid if other machines can connect and no key exists."""
    if settings.is_loopback:
        return
    with database.read() as store:
        if store.keys.count():
            return
    command = command_to_paste(options, "keys create --scopes admin --name first")
    raise Invalid(
        "no_keys",
        f"listening on {settings.host} would let anyone in, because there is no key yet.\n"
        f"Create one:  {command}\n"
        "or listen on this machine only:  --host 127.0.0.1",
    )


def _listen(settings: Settings) -> socket.socket:
    """Open the listening socket before anything else, so that a port in use is reported at once."""
    try:
        listening = socket.create_server(
            (settings.host, settings.port),
            family=socket.AF_INET6 if ":" in settings.host else socket.AF_INET,
            backlog=2048,
        )
        # connections inherit it; otherwise the kernel buffers up to 4 MB for a client that does
        # not read, and the response timeout never starts
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        return listening
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        advice = (
            "stop the process that uses this port, or choose another one with --port"
            if error.errno in (errno.EADDRINUSE, errno.EACCES)
            else "choose one of this machine's addresses with --host"
        )
        raise Invalid(
            "cannot_listen",
            f"cannot listen on {settings.host}:{settings.port} ({reason}): {advice}",
        ) from error


EXAMPLE = Path("examples/data/fashion_ce__cal.npz")
TEXT = """\
calibrd is running on {url}
  data      {data}
  database  {database}
  dashboard {url}/
  API       {url}/docs
  stop      Ctrl-C

"""
IN_THE_REPOSITORY = """\
A first fit, in another terminal, from this folder:

  curl -s '{url}/v1/calibrators/fashion/fits?method=smart' -H 'Prefer: wait=60' \\
    -H 'Content-Type: application/x-npz' --data-binary @{example}
  curl -s '{url}/v1/calibrators/fashion@1/predict?logits=9,2,1,0,0,0,0,0,0,0&top=3'

or in Python:

  import calibrd, numpy as np
  data = np.load("{example}")
  client = calibrd.Client("{url}")
  version = client.fit("fashion", data["logits"], data["labels"], method="smart")
  print(version.reference, version.verdict)
"""
ELSEWHERE = """\
A first fit on the bundled sample, in Python:

  import calibrd, calibrators.sample
  data, test = map(calibrators.sample.sample, ("cal", "test"))
  client = calibrd.Client("{url}")
  judged_on = client.upload(test.logits, test.labels)
  version = client.fit("fashion", data.logits, data.labels, evaluation=judged_on)
  print(version.reference, version.verdict)
"""


def welcome(settings: Settings, port: int) -> str:
    """Return the startup message of a service that listens on ``port``."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return (TEXT + (IN_THE_REPOSITORY if EXAMPLE.exists() else ELSEWHERE)).format(
        example=EXAMPLE,
        url=f"http://{host}:{port}",
        data=settings.data_dir.resolve(),
        database=settings.database_url.partition(":")[0] or "sqlite, in the data folder",
    )
