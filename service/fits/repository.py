"""SQL for fits and the workers that run them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    ScalarSelect,
    Select,
    Text,
    and_,
    cast,
    delete,
    func,
    insert,
    literal,
    literal_column,
    select,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.sql import ColumnElement

from service.datasets.repository import FORGOTTEN_AT_ONCE, in_turns, needed_by_fits
from service.storage.notifications import FITS, FITS_DONE, announce
from service.storage.records import OPEN, Dataset, Fit, FitStatus, Worker
from service.storage.repository import After, Repository, json_bytes, new_id, now
from service.storage.tables import calibrators, datasets, fits, workers

# size of a fit's index entries, and of the row for its Idempotency-Key
INDEX_BYTES = 1024
# a literal: with a parameter, the query could not use the partial index of queued fits
QUEUED = fits.c.status == literal_column(f"'{FitStatus.QUEUED}'")


class Losses(NamedTuple):
    """The number of attempts that lost their workers, and the seconds since the last loss."""

    attempts: int
    seconds_ago: float


class Turn(NamedTuple):
    """A workspace with fits in a queue."""

    queue: str
    workspace: str


class Fits(Repository):
    """SQL for fits. Writes by an attempt are fenced: they apply only while the attempt runs."""

    def add(self, workspace: str, **facts: Any) -> Fit:
        """Add a queued fit."""
        values = {
            "id": new_id("fit"),
            "workspace": workspace,
            "status": FitStatus.QUEUED,
            "attempt": 0,
            "cancel_requested": False,
            "versions": [],
            "created_at": now(),
            **facts,
        }
        made = self._fit(insert(fits).values(values).returning(*fits.c))
        assert made is not None  # noqa: S101
        counted = update(calibrators).where(calibrators.c.id == made.calibrator)
        size = calibrators.c.stored_bytes + INDEX_BYTES + json_bytes(made.order)
        self._execute(counted.values(stored_bytes=size))
        announce(self.session, FITS)
        return made

    def get(self, id: str, workspace: str | None = None) -> Fit | None:
        """Return a fit by its id, from any workspace if ``workspace`` is None."""
        chosen = select(fits).where(fits.c.id == id)
        return self._fit(
            chosen if workspace is None else chosen.where(fits.c.workspace == workspace)
        )

    def several(self, ids: Collection[str]) -> list[Fit]:
        """Return fits by their ids, from all workspaces."""
        return self._fits(select(fits).where(fits.c.id.in_(ids)))

    def page(
        self,
        workspace: str,
        limit: int,
        after: After | None,
        *,
        calibrator: str | None = None,
        status: FitStatus | None = None,
    ) -> list[Fit]:
        """Return a page of fits, newest first."""
        chosen = self._newest(workspace, after, calibrator, status)
        return self._fits(chosen.limit(limit))

    def affordable(
        self,
        workspace: str,
        limit: int,
        after: After | None,
        *,
        calibrator: str | None = None,
        status: FitStatus | None = None,
    ) -> int:
        """Return how many of the next ``limit`` fits a page can hold within its size limit."""
        chosen = self._newest(workspace, after, calibrator, status)
        return self._affordable(chosen.limit(limit), fits.c.order, fits.c.progress, fits.c.error)

    @staticmethod
    def _newest(
        workspace: str, after: After | None, calibrator: str | None, status: FitStatus | None
    ) -> Select[Any]:
        chosen = select(fits).where(fits.c.workspace == workspace)
        if calibrator is not None:
            chosen = chosen.where(fits.c.calibrator_name == calibrator)
        if status is not None:
            chosen = chosen.where(fits.c.status == status)
        if after is not None:
            chosen = chosen.where(tuple_(fits.c.created_at, fits.c.id) < tuple_(*after))
        return chosen.order_by(fits.c.created_at.desc(), fits.c.id.desc())

    def turns(self, queues: Sequence[str]) -> list[Turn]:
        """Return the workspaces with queued fits, sorted by the start time of their last fit.

        This takes a few index lookups per workspace, however many fits are queued.
        """
        found = _waiting_workspaces(queues)
        served = (
            select(fits.c.started_at)
            .where(fits.c.workspace == found.c.workspace, fits.c.started_at.is_not(None))
            .order_by(fits.c.started_at.desc())
            .limit(1)
        )
        oldest = _waiting(fits.c.created_at, found.c.queue, found.c.workspace)
        chosen = (
            select(found.c.queue, found.c.workspace)
            .where(found.c.workspace > "")
            .order_by(func.coalesce(served.scalar_subquery(), 0.0), oldest.scalar_subquery())
        )
        return [Turn(*row) for row in self.session.execute(chosen)]

    def start_next(self, turn: Turn, *, worker: str, device: str) -> Fit | None:
        """Start the oldest queued fit that no other worker is claiming, if there is one."""
        oldest = _waiting(fits.c.id, turn.queue, turn.workspace).with_for_update(skip_locked=True)
        return self.start(oldest.scalar_subquery(), worker=worker, device=device)

    def start(self, id: str | ScalarSelect[str], *, worker: str, device: str) -> Fit | None:
        """Start the next attempt of a queued fit; return None if it is no longer queued."""
        waits = (fits.c.id == id) & (fits.c.status == FitStatus.QUEUED)
        return self._fit(
            update(fits)
            .where(waits)
            .values(
                status=FitStatus.RUNNING,
                attempt=fits.c.attempt + 1,
                worker=worker,
                device=device,
                started_at=func.coalesce(fits.c.started_at, now()),
            )
            .returning(*fits.c)
        )

    def seconds_running(self, id: str) -> float:
        """Return the seconds since the first start of a fit."""
        return float(
            self.session.scalar(select(now() - fits.c.started_at).where(fits.c.id == id)) or 0
        )

    def advance(self, id: str, attempt: int, progress: dict[str, Any]) -> bool | None:
        """Write progress; return True if cancellation was requested, None if the attempt ended."""
        changed = update(fits).where(self._running(id, attempt)).values(progress=progress)
        found: bool | None = self.session.scalar(changed.returning(fits.c.cancel_requested))
        return found

    def runs(self, id: str, attempt: int) -> bool:
        """Return True if this attempt is running; lock the fit until the transaction ends."""
        chosen = select(fits.c.id).where(self._running(id, attempt)).with_for_update()
        return self.session.scalar(chosen) is not None

    def finish(self, id: str, attempt: int, status: FitStatus, **facts: Any) -> Fit | None:
        """End an attempt; if it is not running, change nothing and return None."""
        ended = update(fits).where(self._running(id, attempt))
        announce(self.session, FITS_DONE)
        code = (facts.get("error") or {}).get("code")
        values = {"status": status, "finished_at": now(), "error_code": code, **facts}
        return self._fit(ended.values(values).returning(*fits.c))

    def hand_back(self, id: str, attempt: int) -> bool:
        """Requeue a fit without counting this attempt."""
        return self._wait_again(id, attempt, attempt=attempt - 1)

    def requeue(self, id: str, attempt: int) -> bool:
        """Requeue a fit whose worker was lost; the attempt counts."""
        return self._wait_again(id, attempt, lost_at=now())

    def _wait_again(self, id: str, running: int, **facts: Any) -> bool:
        ended = update(fits).where(self._running(id, running))
        announce(self.session, FITS)
        return self._execute(ended.values(status=FitStatus.QUEUED, worker=None, **facts)) == 1

    def give_up(self, id: str, attempt: int, error: dict[str, str] | None) -> Fit | None:
        """Fail a fit that has lost too many workers."""
        return self.finish(id, attempt, FitStatus.FAILED, error=error, lost_at=now())

    def losses(self, workspace: str, seconds: float) -> Losses:
        """Return a workspace's worker losses in the last ``seconds``."""
        lately = (fits.c.workspace == workspace) & (fits.c.lost_at > now() - seconds)
        ago = func.coalesce(now() - func.max(fits.c.lost_at), seconds)
        chosen = select(func.coalesce(func.sum(fits.c.attempt), 0), ago).where(lately)
        return Losses(*self.session.execute(chosen).one())

    def cancel(self, id: str) -> Fit | None:
        """Cancel a queued fit, or ask a running one to stop; return None if the fit has ended."""
        waits = (fits.c.id == id) & (fits.c.status == FitStatus.QUEUED)
        done = {"status": FitStatus.CANCELLED, "cancel_requested": True, "finished_at": now()}
        ended = self._fit(update(fits).where(waits).values(**done).returning(*fits.c))
        announce(self.session, FITS_DONE)
        if ended is not None:
            return ended
        runs = (fits.c.id == id) & (fits.c.status == FitStatus.RUNNING)
        return self._fit(update(fits).where(runs).values(cancel_requested=True).returning(*fits.c))

    def count_open(self, workspace: str) -> int:
        """Return the number of waiting and running fits of a workspace."""
        is_open = (fits.c.workspace == workspace) & fits.c.status.in_(OPEN)
        return self.session.scalar(select(func.count()).select_from(fits).where(is_open)) or 0

    def count_running(self, workspace: str) -> int:
        """Return the number of running fits of a workspace."""
        runs = (fits.c.workspace == workspace) & (fits.c.status == FitStatus.RUNNING)
        return self.session.scalar(select(func.count()).select_from(fits).where(runs)) or 0

    def running_on(self, worker: str) -> list[Fit]:
        """Return the fits that are running on a worker."""
        mine = (fits.c.worker == worker) & (fits.c.status == FitStatus.RUNNING)
        return self._fits(select(fits).where(mine))

    def without_worker(self) -> list[Fit]:
        """Return the running fits whose workers are unknown."""
        known = select(workers.c.id).where(workers.c.id == fits.c.worker).exists()
        return self._fits(select(fits).where(fits.c.status == FitStatus.RUNNING, ~known))

    def spent_datasets(self, limit: int = FORGOTTEN_AT_ONCE) -> list[Dataset]:
        """Return the ``delete_after_fit`` datasets of finished fits, alternating workspaces."""
        chosen = and_(
            datasets.c.delete_after_fit,
            needed_by_fits(datasets.c.id),
            ~needed_by_fits(datasets.c.id, OPEN),
        )
        return self._all(Dataset, in_turns(chosen, limit))

    def counts(self) -> dict[tuple[str, str], tuple[int, float]]:
        """Return the number of fits and their total duration in seconds, by status and queue."""
        seconds = func.coalesce(func.sum(fits.c.finished_at - fits.c.started_at), 0.0)
        chosen = select(fits.c.status, fits.c.queue, func.count(), seconds)
        rows = self.session.execute(chosen.group_by(fits.c.status, fits.c.queue)).all()
        return {(status, queue): (count, total) for status, queue, count, total in rows}

    def failures(self) -> dict[str, int]:
        """Return the number of failed fits by error code."""
        code = fits.c.error_code
        chosen = select(code, func.count()).where(code.is_not(None)).group_by(code)
        return {row[0]: row[1] for row in self.session.execute(chosen)}

    @staticmethod
    def _running(id: str, attempt: int) -> ColumnElement[bool]:
        return (
            (fits.c.id == id) & (fits.c.attempt == attempt) & (fits.c.status == FitStatus.RUNNING)
        )

    def _fit(self, statement: Any) -> Fit | None:
        found = self._fits(statement)
        return found[0] if found else None

    def _fits(self, statement: Any) -> list[Fit]:
        rows = self.session.execute(statement).mappings()
        return [Fit(**{**row, "status": FitStatus(row["status"])}) for row in rows]


def _waiting(
    column: ColumnElement[Any],
    queue: str | ColumnElement[str],
    workspace: str | ColumnElement[str],
) -> Select[Any]:
    """Select a column of the oldest queued fit of a workspace."""
    waits = and_(QUEUED, fits.c.queue == queue, fits.c.workspace == workspace)
    return select(column).where(waits).order_by(fits.c.created_at).limit(1)


def _waiting_workspaces(queues: Sequence[str]) -> CTE:
    """Select each queue with its waiting workspaces, stepping through an index.

    The rows of a queue start with an empty workspace name and end with NULL.
    """
    names = union_all(*(select(_text(one).label("queue")) for one in queues)).subquery()
    begin = select(names.c.queue, _text("").label("workspace"))
    found = begin.cte("turns", recursive=True)
    waits = and_(QUEUED, fits.c.queue == found.c.queue, fits.c.workspace > found.c.workspace)
    after = select(fits.c.workspace).where(waits).order_by(fits.c.workspace).limit(1)
    step = select(found.c.queue, cast(after.scalar_subquery(), Text))
    step = step.where(found.c.workspace.is_not(None))
    return found.union_all(step)


def _text(value: str) -> ColumnElement[str]:
    return cast(literal(value), Text)


class WorkerRepository(Repository):
    """SQL for worker processes and their heartbeats."""

    def beat(self, id: str, *, queues: list[str], device: str) -> None:
        """Record a heartbeat, and register the worker if it is unknown."""
        if self.renew(id):
            return
        values = {"id": id, "queues": queues, "device": device}
        self._execute(insert(workers).values(started_at=now(), seen_at=now(), **values))

    def renew(self, id: str) -> bool:
        """Renew a heartbeat; others cannot remove the worker until the transaction ends.

        Returns False if the worker is unknown: it was declared dead, or never sent a heartbeat.
        """
        return self._execute(update(workers).where(workers.c.id == id).values(seen_at=now())) == 1

    def remove(self, id: str) -> None:
        """Remove a worker."""
        self._execute(delete(workers).where(workers.c.id == id))

    def remove_silent(self, id: str, for_seconds: float) -> bool:
        """Remove a worker silent for ``for_seconds``, unless a heartbeat is in progress."""
        is_silent = (workers.c.id == id) & (workers.c.seen_at <= now() - for_seconds)
        found = select(workers.c.id).where(is_silent).with_for_update(skip_locked=True)
        return self._execute(delete(workers).where(workers.c.id.in_(found))) == 1

    def alive(self, within: float) -> list[Worker]:
        """Return the workers with a heartbeat in the last ``within`` seconds."""
        return self._all(Worker, select(workers).where(workers.c.seen_at > now() - within))

    def silent(self, for_seconds: float) -> list[Worker]:
        """Return the workers without a heartbeat in the last ``for_seconds`` seconds."""
        return self._all(Worker, select(workers).where(workers.c.seen_at <= now() - for_seconds))
