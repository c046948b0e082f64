"""``calibrd report``."""

from __future__ import annotations

from pathlib import Path

from calibrd.cli.context import CommandContext, Verb
from calibrd.cli.output import CommandError

FORMATS = (".html", ".json", ".svg", ".png")


def add_to(verb: Verb) -> None:
    """Add the command."""
    showing = verb("report", report, "show how a version was judged, or write it to a file")
    showing.add_argument("version", metavar="NAME@NUMBER", help="or NAME@ALIAS")
    showing.add_argument(
        "--out", type=Path, metavar="FILE", help="a page (.html), .json, or a chart (.svg, .png)"
    )


def report(asked: CommandContext) -> None:
    """The report of a version."""
    target: Path | None = asked.flags.out
    if target is not None and target.suffix.lower() not in FORMATS:
        raise CommandError("usage", f"--out must end in {', '.join(FORMATS)}, got {target}")
    with asked.client() as client:
        found = client.report(asked.flags.version)
    if target is None:
        asked.output.answer(found.to_dict(), found.summary())
        return
    found.save(target, title=asked.flags.version)
    document = {"version": asked.flags.version, "file": str(target), "verdict": found.verdict}
    asked.output.answer(document, f"the report of {asked.flags.version} is in {target}")
