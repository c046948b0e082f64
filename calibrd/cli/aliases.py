"""``calibrd promote``, ``rollback`` and ``history``."""

from __future__ import annotations

import argparse

from calibrd.api.references import checked_alias, checked_name
from calibrd.cli.context import CommandContext, Verb, add_limit_flag
from calibrd.cli.figures import Figures
from calibrd.cli.output import minute, table
from calibrd.errors import Refused
from calibrd.models import Move
from calibrd.terminal import printable


def add_to(verb: Verb) -> None:
    """Add the commands."""
    promoting = verb("promote", promote, "point an alias of a calibrator at a version")
    promoting.add_argument("name", metavar="NAME")
    promoting.add_argument("version", metavar="VERSION", help="its number, or another alias")
    _add_alias_flag(promoting)
    promoting.add_argument("--reason", default="", help="is kept in the history")
    promoting.add_argument(
        "--force",
        action="store_true",
        help="also a version judged worse, on too few rows, or less accurate; needs a reason",
    )
    returning = verb("rollback", rollback, "take back the last move of an alias")
    returning.add_argument("name", metavar="NAME")
    _add_alias_flag(returning)
    returning.add_argument("--reason", default="", help="is kept in the history")
    telling = verb("history", history, "list the moves of an alias, newest first")
    telling.add_argument("name", metavar="NAME")
    _add_alias_flag(telling)
    add_limit_flag(telling)


def promote(asked: CommandContext) -> None:
    """Move an alias, and show what that changes."""
    flags = asked.flags
    checked_alias(flags.alias)
    with asked.client() as client:
        version = client.get_version(f"{checked_name(flags.name)}@{flags.version}")
        figures = Figures.of(client, version, flags.alias)
        lines = [] if figures is None else figures.lines
        try:
            alias = client.promote(
                flags.name, version, alias=flags.alias, reason=flags.reason, force=flags.force
            )
        except Refused:
            asked.output.note("\n".join(lines))
            raise
    if alias.warning:
        asked.output.note(printable(f"warning: {alias.warning}"))
    document = {**vars(alias), "figures": None if figures is None else figures.document}
    lines.append(f"{flags.name}@{alias.name} is version {alias.version}")
    asked.output.answer(document, "\n".join(lines))


def rollback(asked: CommandContext) -> None:
    """Take a move back."""
    flags = asked.flags
    with asked.client() as client:
        alias = client.rollback(flags.name, alias=flags.alias, reason=flags.reason)
    asked.output.answer(alias, f"{flags.name}@{alias.name} is version {alias.version} again")


def history(asked: CommandContext) -> None:
    """List moves."""
    flags = asked.flags
    with asked.client() as client:
        moves = client.history(flags.name, alias=flags.alias, limit=flags.limit)
    head = ("move", "from", "to", "when (UTC)", "by", "", "reason")
    asked.output.answer(moves, table(head, [_line(move) for move in moves]))


def _line(move: Move) -> tuple[object, ...]:
    how = "rollback" if move.rollback else ("forced" if move.forced else "")
    when = minute(move.moved_at)
    return move.revision, move.from_version, move.to_version, when, move.moved_by, how, move.reason


def _add_alias_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--alias", default="production", help="[production]")
