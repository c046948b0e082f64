"""SQL for calibrators, their versions and reports."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Select, insert, select, update

from service.storage.records import CalibratorRow, Version
from service.storage.repository import FILE_BYTES, JsonText, Repository, json_bytes, new_id, now
from service.storage.tables import calibrators, reports, versions

BLOBS = ("map_sha256", "onnx_sha256", "judged_sha256")


class Calibrators(Repository):
    """SQL for calibrators, with their versions and reports."""

    def lock(self, id: str) -> None:
        """Lock a calibrator until the transaction ends, so that its aliases can be counted."""
        row = select(calibrators.c.id).where(calibrators.c.id == id)
        self.session.execute(row.with_for_update(key_share=True))

    def named(self, workspace: str, name: str) -> CalibratorRow | None:
        """Return the calibrator with this name."""
        mine = (calibrators.c.workspace == workspace) & (calibrators.c.name == name)
        return self._one(CalibratorRow, select(calibrators).where(mine))

    def add(self, workspace: str, name: str) -> CalibratorRow:
        """Add a calibrator without versions, or return it if it already exists."""
        values = {
            "id": new_id("cb"),
            "workspace": workspace,
            "name": name,
            "last_version": 0,
            "created_at": now(),
        }
        made = self._one_if_unique(
            CalibratorRow, insert(calibrators).values(values).returning(*calibrators.c)
        )
        found = made or self.named(workspace, name)
        assert found is not None  # noqa: S101 - it was added concurrently
        return found

    def page(self, workspace: str, limit: int, after: str | None) -> list[CalibratorRow]:
        """Return a page of calibrators, sorted by name."""
        chosen = select(calibrators).where(calibrators.c.workspace == workspace)
        if after is not None:
            chosen = chosen.where(calibrators.c.name > after)
        return self._all(CalibratorRow, chosen.order_by(calibrators.c.name).limit(limit))

    def add_version(
        self,
        calibrator: str,
        id: str,
        report: dict[str, Any] | JsonText | None,
        *,
        blob_bytes: int,
        fit_info: dict[str, Any] | JsonText,
        **facts: Any,
    ) -> Version:
        """Add the next version of a calibrator, with its report.

        ``id`` is the version's id, which is part of its blob keys.
        """
        files = sum(facts.get(name) is not None for name in BLOBS)
        size = blob_bytes + files * FILE_BYTES + json_bytes(report, fit_info, facts)
        counted = (
            update(calibrators)
            .where(calibrators.c.id == calibrator)
            .values(
                last_version=calibrators.c.last_version + 1,
                stored_bytes=calibrators.c.stored_bytes + size,
            )
            .returning(calibrators.c.last_version)
        )
        number = self.session.execute(counted).scalar_one()
        row = {"calibrator": calibrator, "number": number}
        values = {**row, "id": id, "created_at": now(), "fit_info": fit_info, **facts}
        made = self._one(Version, insert(versions).values(values).returning(*versions.c))
        assert made is not None  # noqa: S101
        if report is not None:
            self._execute(insert(reports).values(**row, document=report))
        return made

    def version(self, calibrator: str, number: int) -> Version | None:
        """Return a version by its number."""
        return self._one(Version, select(versions).where(self._is(versions, calibrator, number)))

    def judged(
        self, workspace: str, name: str, number: int
    ) -> tuple[Version, dict[str, Any] | None] | None:
        """Return a version and its report, read in one statement; None if it does not exist."""
        mine = (calibrators.c.workspace == workspace) & (calibrators.c.name == name)
        is_its = (reports.c.calibrator == versions.c.calibrator) & (
            reports.c.number == versions.c.number
        )
        chosen = (
            select(*versions.c, reports.c.document)
            .join(calibrators, calibrators.c.id == versions.c.calibrator)
            .outerjoin(reports, is_its)
            .where(mine, versions.c.number == number)
        )
        row = self.session.execute(chosen).mappings().one_or_none()
        if row is None:
            return None
        facts = dict(row)
        document: dict[str, Any] | None = facts.pop("document")
        return Version(**facts), document

    def hashes(self, ids: Collection[str]) -> dict[str, set[str | None]]:
        """Return the blob hashes (SHA-256) of the versions that exist, by version id."""
        blobs = (versions.c.map_sha256, versions.c.onnx_sha256, versions.c.judged_sha256)
        rows = self.session.execute(select(versions.c.id, *blobs).where(versions.c.id.in_(ids)))
        return {id: set(sha256s) for id, *sha256s in rows}

    def versions(self, calibrator: str, limit: int, before: int | None) -> list[Version]:
        """Return a page of versions, newest first."""
        return self._all(Version, self._newest(calibrator, before).limit(limit))

    def affordable_versions(self, calibrator: str, limit: int, before: int | None) -> int:
        """Return how many of the next ``limit`` versions a page can hold within its size limit."""
        found = versions.c
        free = (found.params, found.fit_info, found.libraries, found.tags, found.description)
        return self._affordable(self._newest(calibrator, before).limit(limit), *free)

    @staticmethod
    def _newest(calibrator: str, before: int | None) -> Select[Any]:
        chosen = select(versions).where(versions.c.calibrator == calibrator)
        if before is not None:
            chosen = chosen.where(versions.c.number < before)
        return chosen.order_by(versions.c.number.desc())

    def numbers(self, calibrator: str, limit: int) -> list[int]:
        """Return the numbers of the newest versions."""
        chosen = self._newest(calibrator, None).with_only_columns(versions.c.number)
        return list(self.session.scalars(chosen.limit(limit)))

    def report(self, calibrator: str, number: int) -> dict[str, Any] | None:
        """Return the report of a version as plain JSON."""
        chosen = select(reports.c.document).where(self._is(reports, calibrator, number))
        found: dict[str, Any] | None = self.session.scalar(chosen)
        return found

    def has_report(self, calibrator: str, number: int) -> bool:
        """Return True if a version has a report, without reading it."""
        chosen = select(reports.c.number).where(self._is(reports, calibrator, number))
        return self.session.scalar(chosen) is not None

    def annotate(self, calibrator: str, number: int, **notes: Any) -> Version | None:
        """Change the tags or description of a version; update its calibrator's stored bytes."""
        mine = self._is(versions, calibrator, number)
        before = self._one(Version, select(versions).where(mine).with_for_update())
        if before is None:
            return None
        more = json_bytes(notes) - json_bytes({name: getattr(before, name) for name in notes})
        counted = update(calibrators).where(calibrators.c.id == calibrator)
        self._execute(counted.values(stored_bytes=calibrators.c.stored_bytes + more))
        return self._one(
            Version, update(versions).where(mine).values(**notes).returning(*versions.c)
        )

    @staticmethod
    def _is(table: Any, calibrator: str, number: int) -> Any:
        return (table.c.calibrator == calibrator) & (table.c.number == number)
