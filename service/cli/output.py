"""What a command says to its user, and how."""

from __future__ import annotations

import argparse
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

from service import logs


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


def minute(seconds: float | None) -> str:
    """A point in time as a user reads it."""
    if seconds is None:
        return "never"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def command_to_paste(asked: argparse.Namespace, words: str) -> str:
    """A command for the same database as the one asked for; without a password."""
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    given = [
        f"--{name.replace('_', '-')}={logs.redact(str(getattr(asked, name)))}"
        for name in ("data_dir", "database_url")
        if name in asked
    ]
    return shlex.join([str(python), "-m", "service", *words.split(), *given])
