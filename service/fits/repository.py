"""SQL on fit jobs and the workers that run them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import Select, and_, delete, func, insert, select, tuple_, update
from sqlalchemy.sql import ColumnElement

from service.datasets.repository import FORGOTTEN_AT_ONCE, in_turns, needed_by_fits
from service.storage.records import OPEN, Dataset, Fit, FitStatus, Worker
from service.storage.repository import After, Repository, json_bytes, new_id, now
from service.storage.tables import calibrators, datasets, fits, workers


class Losses(NamedTuple):
    """How many attempts lost their workers, and how many seconds ago the last one did."""

    attempts: int
    seconds_ago: float


class Fits(Repository):
    """Fit jobs. Final writes are fenced: they name the attempt that makes them."""

    def add(self, workspace: str, **facts: Any) -> Fit:
        """A new fit that waits."""
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
        size = calibrators.c.stored_bytes + json_bytes(made.order)
        self._changed(counted.values(stored_bytes=size))
        return made

    def get(self, id: str, workspace: str | None = None) -> Fit | None:
        """A fit by its id, of any workspace unless one is named."""
        chosen = select(fits).where(fits.c.id == id)
        return self._fit(
            chosen if workspace is None else chosen.where(fits.c.workspace == workspace)
        )

    def several(self, ids: Collection[str]) -> list[Fit]:
        """Fits by their ids, of all workspaces."""
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
        """A page of fits, newest first."""
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
        """Return how many fits of a page of at most ``limit`` are not too large together."""
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

    def start(self, id: str, *, worker: str, device: str) -> Fit | None:
        """Take a waiting fit for its next attempt; None if it does not wait (any more)."""
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
        """Seconds since the first start of a fit."""
        return float(
            self.session.scalar(select(now() - fits.c.started_at).where(fits.c.id == id)) or 0
        )

    def advance(self, id: str, attempt: int, progress: dict[str, Any]) -> bool | None:
        """Note progress; whether a cancel was asked for, None if the attempt runs no longer."""
        changed = update(fits).where(self._running(id, attempt)).values(progress=progress)
        found: bool | None = self.session.scalar(changed.returning(fits.c.cancel_requested))
        return found

    def runs(self, id: str, attempt: int) -> bool:
        """Whether this attempt runs; if so, nobody else ends it before the transaction does."""
        chosen = select(fits.c.id).where(self._running(id, attempt)).with_for_update()
        return self.session.scalar(chosen) is not None

    def finish(self, id: str, attempt: int, status: FitStatus, **facts: Any) -> Fit | None:
        """End a running attempt; None, and no change, if it is not the one that runs."""
        ended = update(fits).where(self._running(id, attempt))
        return self._fit(ended.values(status=status, finished_at=now(), **facts).returning(*fits.c))

    def hand_back(self, id: str, attempt: int) -> bool:
        """Let a fit wait again, as if this attempt had not been made."""
        given = update(fits).where(self._running(id, attempt))
        return (
            self._changed(given.values(status=FitStatus.QUEUED, attempt=attempt - 1, worker=None))
            == 1
        )

    def requeue(self, id: str, attempt: int) -> bool:
        """Let a fit wait again after its worker was lost; the attempt counts."""
        lost = update(fits).where(self._running(id, attempt))
        values = {"status": FitStatus.QUEUED, "worker": None, "lost_at": now()}
        return self._changed(lost.values(values)) == 1

    def give_up(self, id: str, attempt: int, error: dict[str, str] | None) -> Fit | None:
        """End a fit whose worker was lost once too often."""
        return self.finish(id, attempt, FitStatus.FAILED, error=error, lost_at=now())

    def losses(self, workspace: str, seconds: float) -> Losses:
        """Return how often fits of a workspace lost their workers lately."""
        lately = (fits.c.workspace == workspace) & (fits.c.lost_at > now() - seconds)
        ago = func.coalesce(now() - func.max(fits.c.lost_at), seconds)
        chosen = select(func.coalesce(func.sum(fits.c.attempt), 0), ago).where(lately)
        return Losses(*self.session.execute(chosen).one())

    def cancel(self, id: str) -> Fit | None:
        """Cancel a waiting fit at once, ask a running one to stop; None if it is final."""
        waits = (fits.c.id == id) & (fits.c.status == FitStatus.QUEUED)
        done = {"status": FitStatus.CANCELLED, "cancel_requested": True, "finished_at": now()}
        ended = self._fit(update(fits).where(waits).values(**done).returning(*fits.c))
        if ended is not None:
            return ended
        runs = (fits.c.id == id) & (fits.c.status == FitStatus.RUNNING)
        return self._fit(update(fits).where(runs).values(cancel_requested=True).returning(*fits.c))

    def count_open(self, workspace: str) -> int:
        """Return how many fits of a workspace wait or run."""
        is_open = (fits.c.workspace == workspace) & fits.c.status.in_(OPEN)
        return self.session.scalar(select(func.count()).select_from(fits).where(is_open)) or 0

    def running_on(self, worker: str) -> list[Fit]:
        """The fits that a worker has taken."""
        mine = (fits.c.worker == worker) & (fits.c.status == FitStatus.RUNNING)
        return self._fits(select(fits).where(mine))

    def spent_datasets(self, limit: int = FORGOTTEN_AT_ONCE) -> list[Dataset]:
        """Datasets sent for fits only, whose fits are all final; workspaces in turn."""
        chosen = and_(
            datasets.c.delete_after_fit,
            needed_by_fits(datasets.c.id),
            ~needed_by_fits(datasets.c.id, OPEN),
        )
        return self._all(Dataset, in_turns(chosen, limit))

    def counts(self) -> dict[tuple[str, str], tuple[int, float]]:
        """By status and queue: how many fits, and the seconds that finished ones took in all."""
        seconds = func.coalesce(func.sum(fits.c.finished_at - fits.c.started_at), 0.0)
        chosen = select(fits.c.status, fits.c.queue, func.count(), seconds)
        rows = self.session.execute(chosen.group_by(fits.c.status, fits.c.queue)).all()
        return {(status, queue): (count, total) for status, queue, count, total in rows}

    def failures(self) -> dict[str, int]:
        """How many fits have failed, by the code of their error."""
        failed = fits.c.status == FitStatus.FAILED
        codes = select(fits.c.error["code"].as_string().label("code")).where(failed).subquery()
        chosen = select(codes.c.code, func.count().label("fits")).group_by(codes.c.code)
        return {row.code: row.fits for row in self.session.execute(chosen)}

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


class WorkerRepository(Repository):
    """Worker processes and their heartbeats."""

    def beat(self, id: str, *, queues: list[str], device: str) -> None:
        """A worker says that it lives."""
        if self._changed(update(workers).where(workers.c.id == id).values(seen_at=now())):
            return
        values = {"id": id, "queues": queues, "device": device}
        self._changed(insert(workers).values(started_at=now(), seen_at=now(), **values))

    def remove(self, id: str) -> None:
        """A worker is gone."""
        self._changed(delete(workers).where(workers.c.id == id))

    def ids(self) -> set[str]:
        """All workers that are known, silent or not."""
        return set(self.session.scalars(select(workers.c.id)))

    def alive(self, within: float) -> list[Worker]:
        """Workers seen in the last so many seconds."""
        return self._all(Worker, select(workers).where(workers.c.seen_at > now() - within))

    def silent(self, for_seconds: float) -> list[Worker]:
        """Workers not seen for so many seconds."""
        return self._all(Worker, select(workers).where(workers.c.seen_at <= now() - for_seconds))
