"""What the doctor says of what it sees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from service.errors import BlobMissing, Damaged
from service.maintenance.inventory_repository import FoundAlias, FoundSession, FoundVersion

UPGRADE = "upgrade this installation"
CHANGED = "restore the database from a backup: the row was changed"


class Finding(NamedTuple):
    """What is amiss, with what, and what to do about it."""

    code: str
    subject: str
    problem: str
    advice: str


def of_session(found: FoundSession) -> Iterator[Finding]:
    """What is amiss with a session of a run."""
    subject = f"session {found.id} of the run {found.name}"
    last = found.base_step if found.last_step is None else found.last_step
    if found.steps != last - found.base_step:
        yield Finding(
            "steps_missing",
            subject,
            f"it has {found.steps} steps, and goes from {found.base_step} to {last}",
            "restore the database from a backup: rows were deleted",
        )
    if found.waiting:
        yield Finding(
            "statistics_waiting",
            subject,
            f"it is at step {last}, and {found.waiting} statistics, the first of step "
            f"{found.first_waiting}, wait for more than a day",
            "start the job again where it ran, which sends what it has left; if that is lost, "
            "archive the run",
        )


def of_alias(found: FoundAlias) -> Iterator[Finding]:
    """What is amiss with an alias."""
    subject = f"alias {found.name}@{found.alias}"
    if found.points_at is None:
        yield Finding(
            "alias_dangling",
            subject,
            f"it points at version {found.version}, which is not there",
            "move it to a version that is there",
        )
    told = (found.moves, found.last_revision, found.last_version)
    if told != (found.revision, found.revision, found.version):
        yield Finding(
            "alias_history",
            subject,
            f"it was moved {found.revision} times, to version {found.version} at last; its "
            f"history has {found.moves} moves up to revision {found.last_revision or 0}, "
            f"to version {found.last_version or 'unknown'}",
            "look who wrote to the database by hand, or restore it from a backup",
        )


def unreadable(subject: str, columns: list[str]) -> Iterator[Finding]:
    """That columns of a row cannot be read, if there are any."""
    if columns:
        told = f"its row cannot be read: {', '.join(columns)}"
        yield Finding("row_unreadable", subject, told, CHANGED)


def named(found: FoundVersion) -> str:
    """A version, as findings call it."""
    return f"version {found.name}@{found.version.number}"


def how(damage: Damaged) -> str:
    """What became of a blob, in one word."""
    return "missing" if isinstance(damage, BlobMissing) else "corrupt"
