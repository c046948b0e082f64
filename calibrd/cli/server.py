"""Commands of the server, which the distribution ``calibrd-server`` adds to ``calibrd``."""

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
    """Return the installed server's entry point; None unless a server command is called."""
    if not arguments or arguments[0] not in COMMANDS:
        return None
    for found in metadata.entry_points(group=GROUP, name=ENTRY):
        return cast(ServerCommand, found.load())
    return None


def add_to(add_command: AddCommand) -> None:
    """Add the server's commands to the parser, for its help and to explain how to install it."""
    for name, summary in COMMANDS.items():
        add_command(name, partial(_refuse, name), f"server: {summary}", takes_all=True)


def _refuse(name: str, _context: CommandContext) -> None:
    """Raise CommandError; its hint says how to install the server, or how to order the flags."""
    if metadata.entry_points(group=GROUP, name=ENTRY):
        raise CommandError(
            "usage",
            f"`{name}` is a command of the server: its flags must follow its name",
            f"calibrd {name} --help lists its arguments",
        )
    raise CommandError(
        "no_server",
        f"`{name}` is a command of the server, which is not installed",
        "install the wheel of calibrd-server, which `make wheel` builds; or run its image: "
        "docker compose up",
    )
