"""``calibrd report``."""

from __future__ import annotations

from pathlib import Path

from calibrd.cli.context import AddCommand, CommandContext
from calibrd.cli.output import CommandError

FORMATS = (".html", ".json", ".svg", ".png")


def add_to(add_command: AddCommand) -> None:
    """Add the command."""
    parser = add_command("report", report, "show the report of a version, or write it to a file")
    parser.add_argument("version", metavar="NAME@NUMBER", help="or NAME@ALIAS")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="file to write: a page (.html), JSON (.json) or a chart (.svg, .png)",
    )


def report(context: CommandContext) -> None:
    """Print the report of a version or write it to a file."""
    target: Path | None = context.flags.out
    if target is not None and target.suffix.lower() not in FORMATS:
        raise CommandError("usage", f"--out must end in {', '.join(FORMATS)}, got {target}")
    with context.client() as client:
        found = client.report(context.flags.version)
    if target is None:
        context.output.answer(found.to_dict(), found.summary())
        return
    found.save(target, title=context.flags.version)
    document = {"version": context.flags.version, "file": str(target), "verdict": found.verdict}
    context.output.answer(document, f"wrote the report of {context.flags.version} to {target}")
