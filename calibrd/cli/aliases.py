"""``calibrd promote``, ``rollback`` and ``history``."""

from __future__ import annotations

import argparse

from calibrd.api.references import checked_alias, checked_name
from calibrd.cli.context import AddCommand, CommandContext, add_limit_flag
from calibrd.cli.figures import Figures
from calibrd.cli.output import minute, table
from calibrd.errors import Refused
from calibrd.models import Move
from calibrd.terminal import printable


def add_to(add_command: AddCommand) -> None:
    """Add the commands."""
    promote_parser = add_command("promote", promote, "point an alias of a calibrator at a version")
    promote_parser.add_argument("name", metavar="NAME", help="name of the calibrator")
    promote_parser.add_argument(
        "version", metavar="VERSION", help="version number, or another alias"
    )
    _add_alias_flag(promote_parser)
    promote_parser.add_argument("--reason", default="", help="reason, recorded in the history")
    promote_parser.add_argument(
        "--force",
        action="store_true",
        help="promote a version despite the promotion rules; requires --reason",
    )
    rollback_parser = add_command("rollback", rollback, "undo the last move of an alias")
    rollback_parser.add_argument("name", metavar="NAME", help="name of the calibrator")
    _add_alias_flag(rollback_parser)
    rollback_parser.add_argument("--reason", default="", help="reason, recorded in the history")
    history_parser = add_command("history", history, "list the moves of an alias, newest first")
    history_parser.add_argument("name", metavar="NAME", help="name of the calibrator")
    _add_alias_flag(history_parser)
    add_limit_flag(history_parser)


def promote(context: CommandContext) -> None:
    """Move an alias and print the metrics before and after."""
    flags = context.flags
    checked_alias(flags.alias)
    with context.client() as client:
        version = client.get_version(f"{checked_name(flags.name)}@{flags.version}")
        figures = Figures.of(client, version, flags.alias)
        lines = [] if figures is None else figures.lines
        try:
            alias = client.promote(
                flags.name, version, alias=flags.alias, reason=flags.reason, force=flags.force
            )
        except Refused:
            context.output.note("\n".join(lines))
            raise
    if alias.warning:
        context.output.note(printable(f"warning: {alias.warning}"))
    document = {**vars(alias), "figures": None if figures is None else figures.document}
    lines.append(f"{flags.name}@{alias.name} is version {alias.version}")
    context.output.answer(document, "\n".join(lines))


def rollback(context: CommandContext) -> None:
    """Undo the last move of an alias."""
    flags = context.flags
    with context.client() as client:
        alias = client.rollback(flags.name, alias=flags.alias, reason=flags.reason)
    context.output.answer(
        alias, f"rolled {flags.name}@{alias.name} back to version {alias.version}"
    )


def history(context: CommandContext) -> None:
    """List the moves of an alias."""
    flags = context.flags
    with context.client() as client:
        moves = client.history(flags.name, alias=flags.alias, limit=flags.limit)
    head = ("move", "from", "to", "when (UTC)", "by", "", "reason")
    context.output.answer(moves, table(head, [_line(move) for move in moves]))


def _line(move: Move) -> tuple[object, ...]:
    how = "rollback" if move.rollback else ("forced" if move.forced else "")
    when = minute(move.moved_at)
    return move.revision, move.from_version, move.to_version, when, move.moved_by, how, move.reason


def _add_alias_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--alias", default="production", help="name of the alias [production]")
