"""Messages of the doctor's findings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from service.errors import BlobMissing, Damaged, ServiceError
from service.maintenance.inventory_repository import FoundAlias, FoundSession, FoundVersion

UPGRADE = "upgrade this installation"
CHANGED = "restore the database from a backup: the row was changed"


class Finding(NamedTuple):
    """A problem, its subject, and what to do about it."""

    code: str
    subject: str
    problem: str
    advice: str


def other_store(url: str, error: ServiceError) -> Finding:
    """Return the finding for a blob store that belongs to another database."""
    problem, _, advice = error.message.partition(". ")
    return Finding(error.code, f"blob store {url}", problem, advice[:1].lower() + advice[1:])


def of_session(found: FoundSession) -> Iterator[Finding]:
    """Yield the findings for a session of a run."""
    subject = f"session {found.id} of the run {found.name}"
    last = found.base_step if found.last_step is None else found.last_step
    if found.steps != last - found.base_step:
        yield Finding(
            "steps_missing",
            subject,
            f"it has {found.steps} steps, but spans steps {found.base_step} to {last}",
            "restore the database from a backup: rows were deleted",
        )
    if found.waiting:
        yield Finding(
            "statistics_waiting",
            subject,
            f"it is at step {last}, but {found.waiting} statistics, the first for step "
            f"{found.first_waiting}, have been waiting for more than a day",
            "restart the training job on its machine to send its outbox; if the outbox is lost, "
            "archive the run",
        )


def of_alias(found: FoundAlias) -> Iterator[Finding]:
    """Yield the findings for an alias."""
    subject = f"alias {found.name}@{found.alias}"
    if found.points_at is None:
        yield Finding(
            "alias_dangling",
            subject,
            f"it points at version {found.version}, which does not exist",
            "move it to a version that exists",
        )
    history = (found.moves, found.last_revision, found.last_version)
    if history != (found.revision, found.revision, found.version):
        yield Finding(
            "alias_history",
            subject,
            f"it was moved {found.revision} times, most recently to version {found.version}, but "
            f"its history has {found.moves} moves up to revision {found.last_revision or 0}, "
            f"most recently to version {found.last_version or 'unknown'}",
            "find out who changed the database by hand, or restore it from a backup",
        )


def unreadable(subject: str, columns: list[str]) -> Iterator[Finding]:
    """Yield a finding if some columns of a row cannot be read."""
    if columns:
        problem = f"its row cannot be read: {', '.join(columns)}"
        yield Finding("row_unreadable", subject, problem, CHANGED)


def named(found: FoundVersion) -> str:
    """Return the name of a version as shown in findings."""
    return f"version {found.name}@{found.version.number}"


def how(damage: Damaged) -> str:
    """Return the kind of damage, for the code of a finding."""
    return "missing" if isinstance(damage, BlobMissing) else "corrupt"
