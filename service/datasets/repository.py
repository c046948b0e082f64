"""SQL for datasets and upload parts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Select, case, delete, func, insert, or_, select, tuple_, update
from sqlalchemy.sql import ColumnElement

from service.settings import DAY
from service.storage.records import OPEN, Dataset, FitStatus, Kind, Part
from service.storage.repository import After, Repository, now
from service.storage.tables import datasets, fits, parts

FORGOTTEN_AT_ONCE = 1000  # datasets deleted per query
UPLOAD_SECONDS = 7 * DAY  # time limit for committing an upload in parts


class Datasets(Repository):
    """SQL for datasets and their parts."""

    def add(
        self,
        workspace: str,
        id: str,
        *,
        delete_after_fit: bool,
        keep_seconds: float | None,
        **facts: str | int | bool | None,
    ) -> Dataset | None:
        """Add a dataset; return None if identical content is already stored.

        ``facts`` may include kind, sha256, format, bytes, rows, classes, segments, features,
        feature_bytes and has_head.
        """
        values = {
            "id": id,
            "workspace": workspace,
            "delete_after_fit": delete_after_fit,
            "expires_at": None if keep_seconds is None else now() + keep_seconds,
            "created_at": now(),
            **facts,
        }
        return self._one_if_unique(Dataset, insert(datasets).values(values).returning(*datasets.c))

    def get(self, workspace: str, id: str, *, lock: bool = False) -> Dataset | None:
        """Return a dataset by its id; with ``lock``, lock its row until the transaction ends."""
        mine = (datasets.c.workspace == workspace) & (datasets.c.id == id)
        chosen = select(datasets).where(mine)
        return self._one(Dataset, chosen.with_for_update() if lock else chosen)

    def by_hash(self, workspace: str, sha256: str, kind: Kind | None = None) -> Dataset | None:
        """Return a dataset by its SHA-256, of any kind if ``kind`` is None."""
        mine = (datasets.c.workspace == workspace) & (datasets.c.sha256 == sha256)
        chosen = select(datasets).where(mine).order_by(datasets.c.kind).limit(1)
        return self._one(Dataset, chosen if kind is None else chosen.where(datasets.c.kind == kind))

    def page(self, workspace: str, limit: int, after: After | None) -> list[Dataset]:
        """Return a page of datasets that have not expired, newest first."""
        is_current = datasets.c.expires_at.is_(None) | (datasets.c.expires_at > now())
        chosen = select(datasets).where(datasets.c.workspace == workspace, is_current)
        if after is not None:
            chosen = chosen.where(tuple_(datasets.c.created_at, datasets.c.id) < tuple_(*after))
        order = (datasets.c.created_at.desc(), datasets.c.id.desc())
        return self._all(Dataset, chosen.order_by(*order).limit(limit))

    def like(self, workspace: str, kind: Kind, classes: int, limit: int) -> list[Dataset]:
        """Return the newest complete, unexpired datasets of this kind and number of classes."""
        is_current = datasets.c.expires_at.is_(None) | (datasets.c.expires_at > now())
        alike = (datasets.c.kind == kind) & (datasets.c.classes == classes)
        mine = (datasets.c.workspace == workspace) & datasets.c.sha256.is_not(None)
        chosen = select(datasets).where(mine, is_current, alike)
        return self._all(Dataset, chosen.order_by(datasets.c.created_at.desc()).limit(limit))

    def complete(self, id: str, **facts: str | int | None) -> Dataset | None:
        """Complete an upload whose parts have all arrived.

        Returns None if another caller did so first, or if identical content is already stored.
        """
        open_one = (datasets.c.id == id) & datasets.c.sha256.is_(None)
        changed = update(datasets).where(open_one).values(**facts).returning(*datasets.c)
        return self._one_if_unique(Dataset, changed)

    def keep_longer(
        self, id: str, *, delete_after_fit: bool, keep_seconds: float | None
    ) -> Dataset | None:
        """Extend the retention of a dataset that was sent again, if the new period is longer."""
        values: dict[str, Any] = {"expires_at": None}
        if keep_seconds is not None:
            known, end = datasets.c.expires_at, now() + keep_seconds
            values["expires_at"] = case((known < end, end), else_=known)
        if not delete_after_fit:
            values["delete_after_fit"] = False
        mine = datasets.c.id == id
        return self._one(
            Dataset, update(datasets).where(mine).values(**values).returning(*datasets.c)
        )

    def hashes(self, ids: Collection[str]) -> dict[str, str | None]:
        """Return the SHA-256 of each existing dataset in ``ids``; None if still uploading."""
        chosen = select(datasets.c.id, datasets.c.sha256).where(datasets.c.id.in_(ids))
        return {row.id: row.sha256 for row in self.session.execute(chosen)}

    def remove(self, id: str) -> None:
        """Delete a dataset and its parts."""
        self._execute(delete(parts).where(parts.c.dataset == id))
        self._execute(delete(datasets).where(datasets.c.id == id))

    def is_in_use(self, id: str) -> bool:
        """Return True if an unfinished fit needs a dataset."""
        return bool(self.session.scalar(select(needed_by_fits(id, OPEN))))

    def expired(self, limit: int = FORGOTTEN_AT_ONCE) -> list[Dataset]:
        """Return expired datasets that no unfinished fit needs, and abandoned uploads.

        Workspaces alternate, each with its oldest dataset first.
        """
        is_abandoned = datasets.c.sha256.is_(None) & (
            datasets.c.created_at < now() - UPLOAD_SECONDS
        )
        # two queries, each with its own index
        expired = select(datasets.c.id).where(datasets.c.expires_at < now())
        ids = expired.union(select(datasets.c.id).where(is_abandoned))
        chosen = datasets.c.id.in_(ids) & ~needed_by_fits(datasets.c.id, OPEN)
        return self._all(Dataset, in_turns(chosen, limit))

    def open_uploads(self, workspace: str) -> int:
        """Return the number of uncommitted uploads."""
        return self.session.scalar(select(func.count()).where(_is_open(workspace))) or 0

    def open_parts(self, workspace: str) -> int:
        """Return the number of parts in uncommitted uploads."""
        of_open = parts.join(datasets, parts.c.dataset == datasets.c.id)
        chosen = select(func.count()).select_from(of_open).where(_is_open(workspace))
        return self.session.scalar(chosen) or 0

    def open_bytes(self, workspace: str) -> int:
        """Return the total size in bytes of the parts in uncommitted uploads."""
        total = select(func.sum(datasets.c.part_bytes)).where(_is_open(workspace))
        return int(self.session.scalar(total) or 0)

    def bytes_of_parts(self, id: str) -> int:
        """Return the total size in bytes of the parts in an upload."""
        total = select(datasets.c.part_bytes).where(datasets.c.id == id)
        return int(self.session.scalar(total) or 0)

    def part(self, id: str, number: int) -> Part | None:
        """Return a part that has arrived or was announced."""
        mine = (parts.c.dataset == id) & (parts.c.number == number)
        return self._one(Part, select(parts).where(mine))

    def put_parts(self, id: str, new: Sequence[Part]) -> list[Part]:
        """Record parts, replacing earlier ones with the same numbers; return the replaced parts."""
        same = (parts.c.dataset == id) & parts.c.number.in_([part.number for part in new])
        replaced = self._all(Part, delete(parts).where(same).returning(*parts.c))
        self._execute(insert(parts).values([vars(part) for part in new]))
        more = sum(part.bytes for part in new) - sum(old.bytes for old in replaced)
        upload = update(datasets).where(datasets.c.id == id)
        self._execute(upload.values(part_bytes=datasets.c.part_bytes + more))
        return replaced

    def parts_of(self, id: str) -> list[Part]:
        """Return the parts that have arrived or were announced, in order."""
        return self._all(Part, select(parts).where(parts.c.dataset == id).order_by(parts.c.number))


def needed_by_fits(
    dataset: Any, statuses: Collection[FitStatus] | None = None
) -> ColumnElement[bool]:
    """Return the SQL condition that a fit (in one of ``statuses``, if given) uses the dataset.

    Each of the two columns has its own index, and therefore its own subquery.
    """

    def has(column: ColumnElement[str | None]) -> ColumnElement[bool]:
        chosen = select(fits.c.id).where(column == dataset)
        if statuses is not None:
            chosen = chosen.where(fits.c.status.in_(statuses))
        return chosen.correlate(datasets).exists()

    return or_(has(fits.c.dataset), has(fits.c.evaluation))


def in_turns(chosen: ColumnElement[bool], limit: int) -> Select[Any]:
    """Select datasets round-robin: the oldest of each workspace, then the second oldest, etc."""
    oldest_first = (datasets.c.created_at, datasets.c.id)
    own = func.row_number().over(partition_by=datasets.c.workspace, order_by=oldest_first)
    turn = own.label("turn")
    ranked = select(*datasets.c, turn).where(chosen).subquery()
    columns = [column for column in ranked.c if column.name != "turn"]
    return select(*columns).order_by(ranked.c.turn, ranked.c.created_at, ranked.c.id).limit(limit)


def _is_open(workspace: str) -> ColumnElement[bool]:
    return (datasets.c.workspace == workspace) & datasets.c.sha256.is_(None)
