"""``calibrd list`` and ``calibrd versions``."""

from __future__ import annotations

from calibrd.commands.asked import Asked, Verb, add_limit_flag
from calibrd.commands.output import minute, table


def add_to(verb: Verb) -> None:
    """Add the commands."""
    listing = verb("list", list_calibrators, "list the calibrators of the workspace")
    add_limit_flag(listing)
    numbered = verb("versions", list_versions, "list the versions of a calibrator, newest first")
    numbered.add_argument("name", metavar="NAME")
    add_limit_flag(numbered)


def list_calibrators(asked: Asked) -> None:
    """List calibrators with their aliases."""
    with asked.client() as client:
        found = client.calibrators(limit=asked.flags.limit)
    rows = [
        (one.name, one.latest, ", ".join(f"{alias.name}={alias.version}" for alias in one.aliases))
        for one in found
    ]
    asked.output.answer(found, table(("name", "latest", "aliases"), rows))


def list_versions(asked: Asked) -> None:
    """List versions with their verdicts."""
    with asked.client() as client:
        found = client.versions(asked.flags.name, limit=asked.flags.limit)
    head = ("version", "method", "verdict", "rows", "model", "made (UTC)", "by")
    rows = [
        (
            one.number,
            one.method,
            one.verdict or "not judged",
            one.rows,
            one.model,
            minute(one.created_at),
            one.created_by,
        )
        for one in found
    ]
    asked.output.answer(found, table(head, rows))
