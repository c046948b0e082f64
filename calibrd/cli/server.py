"""Server commands, which the ``calibrd-server`` distribution adds to ``calibrd``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from typing import cast

from calibrd.cli.context import AddCommand, CommandContext
from calibrd.cli.output import CommandError

GROUP, ENTRY = "calibrd.commands", "server"

COMMANDS = {
    "serve": "run the API together with workers",
    "worker": "run a worker that takes fits from the queue",
    "workers": "list the live workers",
    "migrate": "upgrade the database to the current schema, and exit",
    "keys": "create, list, rotate or revoke API keys",
    "backup": "back up the embedded database and its blobs while the service is running",
    "restore": "restore a backup into an empty data directory",
    "doctor": "check all stored data, and report problems",
    "sweep": "delete orphaned blobs",
}

ServerCommand = Callable[[Sequence[str]], int]


def server_command(arguments: Sequence[str]) -> ServerCommand | None:
    """Return the installed server's entry point if a server command is called, else None."""
    if not arguments or arguments[0] not in COMMANDS:
        return None
    for found in metadata.entry_points(group=GROUP, name=ENTRY):
        return cast(ServerCommand, found.load())
    return None


def add_to(add_command: AddCommand) -> None:
    """Add the server's commands, to list them and to explain how to install the server."""
    for name, summary in COMMANDS.items():
        add_command(name, partial(_refuse, name), f"server: {summary}", takes_all=True)


def _refuse(name: str, _context: CommandContext) -> None:
    """Raise CommandError with a hint on installing the server or ordering the flags."""
    if metadata.entry_points(group=GROUP, name=ENTRY):
        raise CommandError(
            "usage",
            f"`{name}` is a server command: its flags must follow its name",
            f"calibrd {name} --help lists its arguments",
        )
    raise CommandError(
        "no_server",
        f"`{name}` is a server command, and the server is not installed",
        "install the calibrd-server wheel, built by `make wheel`, or run the image with "
        "`docker compose up`",
    )
