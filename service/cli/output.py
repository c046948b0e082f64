"""Output of commands."""

from __future__ import annotations

import argparse
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

from service import logs


def say(text: str) -> None:
    """Print to standard output."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def say_note(text: str) -> None:
    """Print to standard error, to keep standard output clean for programs that read it."""
    sys.stderr.write(f"{text}\n")


def say_error(text: str) -> None:
    """Print an error to standard error."""
    say_note(f"error: {text}")


def minute(seconds: float | None) -> str:
    """Format a time in UTC, to the minute; None means never."""
    if seconds is None:
        return "never"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def command_to_paste(options: argparse.Namespace, words: str) -> str:
    """Return a shell command for the same database, with its password redacted."""
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    flags = [
        f"--{name.replace('_', '-')}={logs.redact(str(getattr(options, name)))}"
        for name in ("data_dir", "database_url")
        if name in options
    ]
    return shlex.join([str(python), "-m", "service", *words.split(), *flags])
