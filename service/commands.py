"""What the command line does: serve, work, migrate, manage keys."""

from __future__ import annotations

import argparse
import signal
import socket
import sys
from contextlib import suppress
from datetime import UTC, datetime

import uvicorn

from service import logs
from service.app import create_app
from service.core import keys
from service.core.access import Scope
from service.errors import Invalid
from service.jobs.prepare import prepare_database
from service.settings import Settings
from service.storage.database import Database
from service.storage.records import Key
from service.storage.store import Store
from service.welcome import welcome

KEEP_ALIVE_SECONDS = 75


def say(text: str) -> None:
    """Tell the user."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def say_error(text: str) -> None:
    """Tell the user what went wrong."""
    sys.stderr.write(f"error: {text}\n")


def serve(settings: Settings, _asked: argparse.Namespace) -> None:
    """Run the API until it is interrupted."""
    _check_open(settings)
    logs.configure(settings.log_level, settings.log_format)
    listening = _listen(settings)
    port = listening.getsockname()[1]
    server = _Server(
        uvicorn.Config(
            create_app(settings),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=5,
        )
    )
    server.greeting = welcome(settings, port)
    # uvicorn raises the signal that ended it once more
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listening])


class _Server(uvicorn.Server):
    """Greets when it is ready to answer."""

    greeting: str

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            say(self.greeting)


def work(settings: Settings, asked: argparse.Namespace) -> None:
    """Run a worker until it is interrupted."""
    from service.jobs.worker import run_worker  # loads torch

    run_worker(settings, asked.queues, asked.device)


def migrate(settings: Settings, _asked: argparse.Namespace) -> None:
    """Bring the database up to date."""
    prepare_database(Database(settings.database))
    say("the database is up to date")


def manage_keys(settings: Settings, asked: argparse.Namespace) -> None:
    """Make, list, rotate or revoke keys."""
    database = Database(settings.database)
    prepare_database(database)
    if asked.action in ("rotate", "revoke") and asked.id is None:
        raise Invalid("no_id", f"name the key: python -m service keys {asked.action} ID")
    with database.write() as store:
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
                _list(store, workspace)


def _show_new(new: keys.NewKey) -> None:
    say(new.token)
    say_note(f"key {new.key.id} of {', '.join(new.key.scopes)}; it is shown this once, keep it")


def say_note(text: str) -> None:
    """Tell the user, but not a program that reads the output."""
    sys.stderr.write(f"{text}\n")


def _list(store: Store, workspace: str) -> None:
    found = store.keys.all_of(workspace)
    for key in found:
        say(_line(key))
    if not found:
        say_note("there are no keys: python -m service keys create --scopes admin")


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


def _check_open(settings: Settings) -> None:
    """Refuse to be reachable from elsewhere without a key."""
    if settings.is_loopback:
        return
    database = Database(settings.database)
    prepare_database(database)
    with database.read() as store:
        if store.keys.count():
            return
    raise Invalid(
        "no_keys",
        f"listening on {settings.host} would let anyone in, because no key was made yet.\n"
        "Make one:  python -m service keys create --scopes admin --name first\n"
        "or listen on this machine only:  --host 127.0.0.1",
    )


def _listen(settings: Settings) -> socket.socket:
    """The listening socket; taken before anything else, so that a port in use is told at once."""
    try:
        return socket.create_server(
            (settings.host, settings.port),
            family=socket.AF_INET6 if ":" in settings.host else socket.AF_INET,
            backlog=2048,
        )
    except OSError as error:
        raise Invalid(
            "cannot_listen",
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror}): "
            "stop what listens there, or choose another with --port",
        ) from error
