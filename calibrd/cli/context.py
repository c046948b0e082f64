"""What a command was given, and what most commands need of it."""

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

PATIENCE = 5.0
MAP_ENDING = ".calibrd"


class Verb(Protocol):
    """What adds a command to the parser."""

    def __call__(
        self, name: str, run: Any, summary: str, **options: Any
    ) -> argparse.ArgumentParser: ...


class NamedMap(NamedTuple):
    """A map, and what it is called: a file, or a version of the service."""

    fitted: CalibrationMap
    words: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class CommandContext:
    """The flags of a command, and where its answer goes."""

    flags: argparse.Namespace
    output: Output
    rest: list[str]

    def get(self, name: str, default: Any = None) -> Any:
        """A flag, or the default if it was not given."""
        return getattr(self.flags, name, default)

    def client(self, patience: float = PATIENCE) -> Client:
        """A client of the service that is meant."""
        given = self.get("patience", patience)
        return Client(self.get("url"), self.get("api_key"), patience=given)

    def set_file(self, path: str) -> SetFile:
        """A file of labelled rows."""
        return read_set(
            path,
            columns=self.columns,
            labels_column=self.get("labels_column") or "labels",
            segments_column=self.get("segments_column"),
            kind=self.get("kind"),
        )

    @property
    def columns(self) -> list[str] | None:
        """The columns that hold the numbers, if they were named."""
        several, one = self.get("columns"), self.get("logits_column")
        if several is not None and one is not None:
            raise CommandError("usage", "--columns and --logits-column cannot both be given")
        if one is not None:
            return [one]
        return None if several is None else [name.strip() for name in several.split(",")]

    def map(self, *, confirmed: bool = False) -> NamedMap:
        """The map of ``--map``: a file that ends in .calibrd, or a version of the service.

        Without the service it is the one that was loaded here last, unless it must be
        ``confirmed``.
        """
        given: str = self.flags.map
        if given.endswith(MAP_ENDING) or "/" in given:
            if self.get("model") is not None:
                raise CommandError("usage", f"--model has no use: {given} does not say its model")
            fitted = _read(Path(given))
            return NamedMap(fitted, given, {"file": given, "method": fitted.method})
        with self.client() as client:
            local = client.load(given, model=self.get("model"), refresh=None)
        now, ref = local.current, Reference.of(given)
        if local.problem is not None and confirmed and ref.number is None:
            raise CommandError(
                "not_confirmed", f"what {ref} means now is not known: {local.problem}"
            )
        said = f"{ref.name}@{now.number}" if ref.number else f"{ref} (version {now.number})"
        facts = {
            "name": ref.name,
            "version": now.number,
            "method": now.map.method,
            "model": now.model,
            "sha256": now.sha256,
            "confirmed_at": now.confirmed_at,
            "problem": local.problem,
        }
        return NamedMap(now.map, said, facts)


def _read(path: Path) -> CalibrationMap:
    try:
        return read_map(path)
    except ValueError as error:
        raise CommandError("not_a_map", f"{path}: {error}") from error


def check_same_kind(fitted: CalibrationMap, data: CalibrationSet, path: Path) -> None:
    """Refuse rows of another kind or number of classes than the map takes."""
    if (data.k, data.kind) != (fitted.k, fitted.kind):
        raise CommandError(
            "wrong_kind",
            f"{path} holds {data.kind} of {data.k} classes, "
            f"but the map takes {fitted.kind} of {fitted.k}",
        )


def note_segments(asked: CommandContext, known: int, rows: int) -> None:
    """Tell how many rows are in a segment of the map, if not all are."""
    if known < rows:
        asked.output.note(
            f"{known:,} of {rows:,} rows are in a segment of this map; the others get what holds "
            "for all"
        )


def add_limit_flag(parser: argparse.ArgumentParser) -> None:
    """The flag that shortens a list."""
    parser.add_argument("--limit", type=_count, metavar="N", help="at most so many")


def seconds(text: str) -> float:
    """A time that a flag gives."""
    with suppress(ValueError):
        if (given := float(text)) >= 0:
            return given
    raise argparse.ArgumentTypeError(f"must be a number of seconds, 0 or more, got {text!r}")


def _count(text: str) -> int:
    with suppress(ValueError):
        if (given := int(text)) >= 1:
            return given
    raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, got {text!r}")


def add_rows_flags(parser: argparse.ArgumentParser, *, labelled: bool = True) -> None:
    """The flags that say where in a file the numbers are."""
    group = parser.add_argument_group("in parquet and arrow files")
    group.add_argument("--columns", metavar="A,B,...", help="with a number for each class")
    group.add_argument(
        "--logits-column", metavar="NAME", help="with a list for each row [its kind]"
    )
    group.add_argument(
        "--segments-column",
        metavar="NAME",
        help="with the segment of each row [segments or segment, if it is there]",
    )
    if labelled:
        group.add_argument("--labels-column", metavar="NAME", help="with the labels [labels]")
        group.add_argument(
            "--kind",
            choices=["logits", "probabilities"],
            help="what the numbers are; an npz says it by its names [logits]",
        )


def add_map_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that say which map."""
    parser.add_argument(
        "--map",
        required=True,
        metavar="MAP",
        help="NAME@ALIAS or NAME@NUMBER of the service, or a file that ends in .calibrd",
    )
    parser.add_argument(
        "--model", metavar="FINGERPRINT", help="refuse a version fitted for another model"
    )
