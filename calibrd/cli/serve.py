"""``calibrd serve``: the server, where it is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from calibrd.cli.context import Asked, Verb
from calibrd.cli.output import CommandError

# a folder of that name may be anybody's
SIGNS = ("__main__.py", "http_protocol.py", "jobs", "storage/migrations")


def add_to(verb: Verb) -> None:
    """Add the command."""
    verb(
        "serve",
        serve,
        "run the service: `python -m service serve` with the flags that follow",
        takes_all=True,
    )


def serve(asked: Asked) -> None:
    """Become the server, if this folder has it."""
    folder = Path.cwd() / "service"
    if not all((folder / sign).exists() for sign in SIGNS):
        raise CommandError(
            "no_server",
            "the server is no part of this package, and is not in this folder",
            "run this in the repository of calibrd (or `make serve` there), or run its image: "
            "docker compose up",
        )
    flags = [one for one in asked.rest if one != "--json"]
    os.execv(sys.executable, [sys.executable, "-m", "service", "serve", *flags])  # noqa: S606
