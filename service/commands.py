"""What the command line does: serve, work, list workers, migrate, manage keys."""

from __future__ import annotations

import argparse
import errno
import shlex
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import uvicorn
from alembic.util import CommandError
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from service import logs
from service.core import keys
from service.core.access import Scope
from service.core.fits import WORKER_IS_ALIVE
from service.errors import Invalid
from service.jobs.identity import is_of_this_machine
from service.jobs.prepare import prepare_database
from service.settings import Settings
from service.storage.database import Database
from service.storage.migrate import open_current
from service.storage.records import Key
from service.storage.store import Store
from service.welcome import welcome

KEEP_ALIVE_SECONDS = 75
ENDING = (signal.SIGTERM, signal.SIGINT)


def say(text: str) -> None:
    """Tell the user."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def say_note(text: str) -> None:
    """Tell the user, but not a program that reads the output."""
    sys.stderr.write(f"{text}\n")


def say_error(text: str) -> None:
    """Tell the user what went wrong."""
    say_note(f"error: {text}")


def serve(settings: Settings, asked: argparse.Namespace) -> None:
    """Run the API until it is interrupted."""
    for number in ENDING:
        signal.signal(number, lambda *_: sys.exit(0))
    logs.configure(settings.log_level, settings.log_format)
    listening = _listen(settings)
    port = listening.getsockname()[1]
    _check_writable(settings.data_dir)  # uploads lie there, wherever the rest does
    with closing(prepared(settings)) as database:
        _check_open(settings, database, asked)
    # no other command needs the web framework
    from service.app import create_app
    from service.http_protocol import HttpProtocol

    app = create_app(settings)
    server = _Server(
        uvicorn.Config(
            app,
            http=HttpProtocol,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=5,
        )
    )
    server.greeting = welcome(settings, port)
    server.end_waiting = app.state.parts.watcher.stop
    server.run(sockets=[listening])


class _Server(uvicorn.Server):
    """Greets when it is ready to answer, and ends in peace however often it is told to."""

    greeting: str
    end_waiting: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            say(self.greeting)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.end_waiting()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End orderly; uvicorn would break off at a second Ctrl-C, and raise signals again."""
        for number in ENDING:
            signal.signal(number, self._end)
        yield

    def _end(self, *_: object) -> None:
        self.should_exit = True


def work(settings: Settings, asked: argparse.Namespace) -> None:
    """Run a worker until it is interrupted."""
    prepared(settings).close()
    from service.jobs.worker import run_worker  # loads torch

    run_worker(settings, asked.queues, asked.device)


def migrate(settings: Settings, _asked: argparse.Namespace) -> None:
    """Bring the database up to date."""
    prepared(settings).close()
    say("the database is up to date")


def list_workers(settings: Settings, asked: argparse.Namespace) -> int:
    """List the workers that live; 1 if there are none. The database is only read."""
    with (
        _database_explained(),
        closing(Database(settings.database)) as database,
        database.read() as store,
    ):
        alive = store.workers.alive(WORKER_IS_ALIVE)
    found = [one for one in alive if not asked.here or is_of_this_machine(one.id)]
    for one in found:
        started = f"since {_day(one.started_at)}"
        say("  ".join((one.id, ",".join(one.queues), one.device, started)))
    if not found:
        say_note(f"no worker {'of this machine ' if asked.here else ''}is alive")
    return 0 if found else 1


def manage_keys(settings: Settings, asked: argparse.Namespace) -> None:
    """Make, list, rotate or revoke keys."""
    if asked.action in ("rotate", "revoke") and asked.id is None:
        raise Invalid("no_id", f"name the key: {_command(asked, f'keys {asked.action} ID')}")
    with closing(prepared(settings)) as database, database.write() as store:
        made = asked.action == "create"
        workspace = keys.workspace_named(store, asked.workspace, make=made).id
        match asked.action:
            case "create":
                scopes = [_scope(one) for one in asked.scopes.split(",")]
                new = keys.create(store, workspace, name=asked.name, scopes=scopes, days=asked.days)
                _show_new(new)
            case "rotate":
                _show_new(keys.rotate(store, workspace, asked.id, grace_hours=asked.grace_hours))
            case "revoke":
                say(_line(keys.revoke(store, workspace, asked.id)))
            case _:
                _list(store, workspace, asked)


def _show_new(new: keys.NewKey) -> None:
    say(new.token)
    say_note(f"key {new.key.id} of {', '.join(new.key.scopes)}; it is shown this once, keep it")


def _list(store: Store, workspace: str, asked: argparse.Namespace) -> None:
    found = store.keys.all_of(workspace)
    for key in found:
        say(_line(key))
    if not found:
        say_note(f"there are no keys: {_command(asked, 'keys create --scopes admin')}")


def _line(key: Key) -> str:
    state = "revoked" if key.revoked_at else f"expires {_day(key.expires_at)}"
    used = f"last used {_day(key.last_used_at)}"
    return "  ".join((key.id, key.name, ",".join(key.scopes), state, used))


def _day(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _scope(name: str) -> Scope:
    try:
        return Scope(name.strip())
    except ValueError as error:
        raise Invalid("bad_scope", f"{name!r} is not a scope: {', '.join(Scope)}") from error


def prepared(settings: Settings) -> Database:
    """The database, up to date; what is wrong with it or with the folders in use is told."""
    if not (settings.database_url and settings.blobs_url):
        _check_writable(settings.data_dir)
    if settings.blobs.startswith("file:"):
        _check_writable(Path(unquote(urlsplit(settings.blobs).path)))
    with _database_explained():
        database = Database(settings.database)
        prepare_database(database)
    return database


def existing(settings: Settings) -> Database:
    """The database as it is; what is wrong with it is told."""
    with _database_explained():
        return open_current(settings.database)


@contextmanager
def _database_explained() -> Iterator[None]:
    """Say what to look at when the database cannot be used."""
    try:
        yield
    except (SQLAlchemyError, CommandError, OSError, ValueError) as error:
        reason = " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split())
        raise Invalid(
            "no_database",
            f"cannot use the database ({logs.redact(reason)}): check that it runs, that this user "
            "may change it, and --database-url",
        ) from error


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Invalid(
            "cannot_write",
            f"cannot write to the folder {folder} ({error.strerror}): "
            "let this user write there, or choose another with --data-dir or --blobs-url",
        ) from error


def _check_open(settings: Settings, database: Database, asked: argparse.Namespace) -> None:
    """Refuse to be reachable from elsewhere without a key."""
    if settings.is_loopback:
        return
    with database.read() as store:
        if store.keys.count():
            return
    raise Invalid(
        "no_keys",
        f"listening on {settings.host} would let anyone in, because no key was made yet.\n"
        f"Make one:  {_command(asked, 'keys create --scopes admin --name first')}\n"
        "or listen on this machine only:  --host 127.0.0.1",
    )


def _command(asked: argparse.Namespace, words: str) -> str:
    """A command for the same database as this one, to be pasted; without a password."""
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    given = [
        f"--{name.replace('_', '-')}={logs.redact(str(getattr(asked, name)))}"
        for name in ("data_dir", "database_url")
        if name in asked
    ]
    return shlex.join([str(python), "-m", "service", *words.split(), *given])


def _listen(settings: Settings) -> socket.socket:
    """The listening socket; taken before anything else, so that a port in use is told at once."""
    try:
        return socket.create_server(
            (settings.host, settings.port),
            family=socket.AF_INET6 if ":" in settings.host else socket.AF_INET,
            backlog=2048,
        )
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        advice = (
            "stop what listens there, or choose another with --port"
            if error.errno in (errno.EADDRINUSE, errno.EACCES)
            else "choose an address of this machine with --host"
        )
        raise Invalid(
            "cannot_listen",
            f"cannot listen on {settings.host}:{settings.port} ({reason}): {advice}",
        ) from error
