"""The context of a command, and flags shared by several commands."""

from __future__ import annotations

import argparse
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from calibrators import CalibrationMap, CalibrationSet
from calibrd.api.references import Reference
from calibrd.cli.output import CommandError, Output
from calibrd.client import Client
from calibrd.io.dataset_files import SetFile, read_map, read_set

RETRY_SECONDS = 5.0
MAP_ENDING = ".calibrd"


class AddCommand(Protocol):
    """A function that adds a command to the parser."""

    def __call__(
        self, name: str, run: Any, summary: str, **options: Any
    ) -> argparse.ArgumentParser:
        """Add a command and return its parser."""


class NamedMap(NamedTuple):
    """A map with a description of its origin: a file, or a version on the service."""

    fitted: CalibrationMap
    description: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class CommandContext:
    """The flags and the output of a command."""

    flags: argparse.Namespace
    output: Output
    rest: list[str]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a flag, or the default if it was not given."""
        return getattr(self.flags, name, default)

    def client(self, retry_seconds: float = RETRY_SECONDS) -> Client:
        """Create a client for the service."""
        retry_seconds = self.get("retry_seconds", retry_seconds)
        return Client(self.get("url"), self.get("api_key"), retry_seconds=retry_seconds)

    def set_file(self, path: str) -> SetFile:
        """Read a file of labelled rows."""
        return read_set(
            path,
            columns=self.columns,
            labels_column=self.get("labels_column") or "labels",
            segments_column=self.get("segments_column"),
            kind=self.get("kind"),
        )

    @property
    def columns(self) -> list[str] | None:
        """The columns that hold the values; None if no flag names them."""
        several, one = self.get("columns"), self.get("logits_column")
        if several is not None and one is not None:
            raise CommandError("usage", "--columns and --logits-column cannot be combined")
        if one is not None:
            return [one]
        return None if several is None else [name.strip() for name in several.split(",")]

    def map(self, *, confirmed: bool = False) -> NamedMap:
        """Return the map named by ``--map``: a .calibrd file, or a version on the service.

        If the service is unavailable, return the cached map; with ``confirmed``, raise CommandError
        instead if ``--map`` names an alias.
        """
        name: str = self.flags.map
        if name.endswith(MAP_ENDING) or "/" in name:
            if self.get("model") is not None:
                raise CommandError(
                    "usage", f"--model cannot be used with {name}: files do not record models"
                )
            fitted = _read(Path(name))
            return NamedMap(fitted, name, {"file": name, "method": fitted.method})
        with self.client() as client:
            local = client.load(name, model=self.get("model"), refresh=None)
        now, ref = local.current, Reference.of(name)
        if local.problem is not None and confirmed and ref.number is None:
            raise CommandError(
                "not_confirmed",
                f"cannot confirm which version {ref} points at now: {local.problem}",
            )
        description = f"{ref.name}@{now.number}" if ref.number else f"{ref} (version {now.number})"
        facts = {
            "name": ref.name,
            "version": now.number,
            "method": now.map.method,
            "model": now.model,
            "sha256": now.sha256,
            "confirmed_at": now.confirmed_at,
            "problem": local.problem,
        }
        return NamedMap(now.map, description, facts)


def _read(path: Path) -> CalibrationMap:
    try:
        return read_map(path)
    except ValueError as error:
        raise CommandError("not_a_map", f"{path}: {error}") from error


def check_same_kind(fitted: CalibrationMap, data: CalibrationSet, path: Path) -> None:
    """Raise CommandError unless the rows have the map's kind and number of classes."""
    if (data.k, data.kind) != (fitted.k, fitted.kind):
        raise CommandError(
            "wrong_kind",
            f"{path} contains {data.kind} of {data.k} classes, "
            f"but the map takes {fitted.kind} of {fitted.k} classes",
        )


def note_segments(context: CommandContext, known: int, rows: int) -> None:
    """Print the number of rows that belong to a segment of the map, unless all do."""
    if known < rows:
        context.output.note(
            f"{known:,} of {rows:,} rows belong to a segment of this map; the others use the map "
            "fitted on all rows"
        )


def add_limit_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag that limits a list."""
    parser.add_argument("--limit", type=_count, metavar="N", help="list at most N items")


def seconds(text: str) -> float:
    """Parse a number of seconds."""
    with suppress(ValueError):
        if (value := float(text)) >= 0:
            return value
    raise argparse.ArgumentTypeError(f"must be a non-negative number of seconds, got {text!r}")


def _count(text: str) -> int:
    with suppress(ValueError):
        if (value := int(text)) >= 1:
            return value
    raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}")


def add_rows_flags(parser: argparse.ArgumentParser, *, labelled: bool = True) -> None:
    """Add the flags that name the columns of a file."""
    group = parser.add_argument_group("in parquet and arrow files")
    group.add_argument("--columns", metavar="A,B,...", help="columns of numbers, one per class")
    group.add_argument(
        "--logits-column", metavar="NAME", help="column of lists, one per row [the value of --kind]"
    )
    group.add_argument(
        "--segments-column",
        metavar="NAME",
        help="column with each row's segment [segments or segment, if present]",
    )
    if labelled:
        group.add_argument(
            "--labels-column", metavar="NAME", help="column with the labels [labels]"
        )
        group.add_argument(
            "--kind",
            choices=["logits", "probabilities"],
            help="kind of the values; in an npz, implied by the name of the array [logits]",
        )


def add_map_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose the map."""
    parser.add_argument(
        "--map",
        required=True,
        metavar="MAP",
        help="NAME@ALIAS or NAME@NUMBER on the service, or a .calibrd file",
    )
    parser.add_argument(
        "--model", metavar="FINGERPRINT", help="reject a version fitted for another model"
    )
