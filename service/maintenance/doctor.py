"""The doctor: a read-only check of all stored data while the service is running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from operator import attrgetter

from calibrators import CalibrationError, Report, archive
from calibrators.comparison.judged_rows import JudgedRows
from service.errors import Conflict, Damaged
from service.maintenance.doctor_messages import (
    CHANGED,
    UPGRADE,
    Finding,
    how,
    named,
    of_alias,
    of_session,
    other_store,
    unreadable,
)
from service.maintenance.inventory_repository import (
    FoundVersion,
    Inventory,
    Number,
    Place,
    Row,
    pages,
)
from service.maintenance.sweep import sweep
from service.storage.blob_keys import dataset_key, judged_key, map_key, onnx_key
from service.storage.blobs import Blobs
from service.storage.database import Database
from service.storage.records import Dataset, Fit, FitStatus, Version
from service.storage.store_identity import check_bound


class Doctor:
    """A check of all stored data; ``checked`` counts the checked items by kind.

    ``progress`` is called with the total so far. ``orphans`` is the number of blobs older than
    ``orphan_seconds`` that no row refers to; the next sweep deletes them.
    """

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        *,
        orphan_seconds: float,
        progress: Callable[[int], None] = lambda checked: None,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._orphan_seconds = orphan_seconds
        self._progress = progress
        self.checked: Counter[str] = Counter()
        self.orphans = 0

    def findings(self) -> Iterator[Finding]:
        """Yield problems as they are found; if the blob store is wrong, yield only that one."""
        try:
            check_bound(self._database, self._blobs)
        except Conflict as error:
            yield other_store(self._blobs.url, error)
            return
        yield from self._versions()
        yield from self._ownerless_versions()
        yield from self._aliases()
        yield from self._datasets()
        yield from self._fits()
        yield from self._runs()
        found = sweep(self._database, self._blobs, older_than=self._orphan_seconds, dry_run=True)
        self.orphans = found.orphans.total()

    def _versions(self) -> Iterator[Finding]:
        for found in self._each("versions", Inventory.versions, ("", 0), attrgetter("place")):
            yield from unreadable(named(found), found.unreadable)
            yield from self._map(found)
            yield from self._onnx(found)
            yield from self._judged_rows(found)
            yield from self._report(found)

    def _ownerless_versions(self) -> Iterator[Finding]:
        def itself(place: Number) -> Number:
            return place

        read = Inventory.ownerless_versions
        for calibrator, number in self._each("versions", read, ("", 0), itself):
            yield Finding(
                "version_without_calibrator",
                f"version {calibrator}@{number}",
                "its calibrator is missing, so it cannot be reached",
                "restore the database from a backup: a row was deleted",
            )

    def _runs(self) -> Iterator[Finding]:
        read = Inventory.run_sessions
        for found in self._each("sessions of runs", read, ("", 0), attrgetter("place")):
            yield from of_session(found)

    def _map(self, found: FoundVersion) -> Iterator[Finding]:
        version, subject = found.version, named(found)
        key = map_key(found.workspace, version.id, version.map_sha256)
        advice = f"restore the blob {key} from a backup; until then, use another version"
        try:
            fitted = archive.load(self._blobs.get(key, version.map_sha256))
        except Damaged as error:
            yield Finding(f"map_{how(error)}", subject, error.message, advice)
        except CalibrationError as error:
            yield Finding("map_unreadable", subject, str(error), UPGRADE)
        else:
            if (fitted.k, fitted.kind) != (version.classes, version.kind):
                yield Finding(
                    "map_differs",
                    subject,
                    f"the map takes {fitted.kind} for {fitted.k} classes, but its row states "
                    f"{version.kind} for {version.classes}",
                    CHANGED,
                )
            if version.method not in fitted.made_by:
                problem = f"its map has method {fitted.method}, but its row states {version.method}"
                yield Finding("row_differs", subject, problem, CHANGED)

    def _onnx(self, found: FoundVersion) -> Iterator[Finding]:
        version = found.version
        if version.onnx_sha256 is None:
            return
        key = onnx_key(found.workspace, version.id, version.onnx_sha256)
        damage = self._damage(key, version.onnx_sha256)
        if damage is not None:
            advice = f"restore the blob {key} from a backup, or fit again; the map is not affected"
            yield Finding(f"onnx_{how(damage)}", named(found), damage.message, advice)

    def _judged_rows(self, found: FoundVersion) -> Iterator[Finding]:
        version = found.version
        if version.judged_sha256 is None:
            return
        key = judged_key(found.workspace, version.id, version.judged_sha256)
        advice = f"restore the blob {key} from a backup; until then, compare versions on datasets"
        try:
            rows = JudgedRows.load(self._blobs.get(key, version.judged_sha256))
        except Damaged as error:
            yield Finding(f"judged_rows_{how(error)}", named(found), error.message, advice)
        except CalibrationError as error:
            yield Finding("judged_rows_unreadable", named(found), str(error), UPGRADE)
        else:
            if rows.data != version.judged_data:
                problem = "its judged rows come from different data than its row states"
                yield Finding("row_differs", named(found), problem, CHANGED)

    def _report(self, found: FoundVersion) -> Iterator[Finding]:
        version: Version = found.version
        advice = "restore the database from a backup, or fit again"
        try:
            with self._database.read() as store:
                document = store.calibrators.report(version.calibrator, version.number)
            if document is not None:
                verdict = Report.from_dict(document).verdict
                if verdict != version.verdict:
                    problem = f"its report states {verdict}, but its row states {version.verdict}"
                    yield Finding("row_differs", named(found), problem, CHANGED)
            elif version.fit is not None or version.verdict is not None:
                yield Finding("report_missing", named(found), "its report is missing", advice)
        except (CalibrationError, ValueError) as error:
            problem = f"its report cannot be read: {error}"
            yield Finding("report_unreadable", named(found), problem, advice)

    def _aliases(self) -> Iterator[Finding]:
        for found in self._each("aliases", Inventory.aliases, ("", ""), attrgetter("place")):
            yield from of_alias(found)

    def _datasets(self) -> Iterator[Finding]:
        for dataset in self._each("datasets", Inventory.datasets, "", attrgetter("id")):
            yield from self._dataset(dataset)

    def _dataset(self, dataset: Dataset) -> Iterator[Finding]:
        assert dataset.sha256 is not None  # noqa: S101
        key = dataset_key(dataset.workspace, dataset.id, dataset.sha256)
        damage = self._damage(key, dataset.sha256)
        if damage is None:
            return
        with self._database.read() as store:
            is_there = bool(store.datasets.hashes([dataset.id]))
        if is_there:  # otherwise it was deleted during the check
            advice = f"upload the same bytes again to repair it, or restore the blob {key}"
            subject = f"dataset {dataset.id}"
            yield Finding(f"dataset_{how(damage)}", subject, damage.message, advice)

    def _fits(self) -> Iterator[Finding]:
        for page in self._pages(Inventory.fits, "", attrgetter("place")):
            self._count("fits", len(page))
            for found in page:
                if found.fit.status in (FitStatus.QUEUED, FitStatus.SUCCEEDED):
                    yield from unreadable(f"fit {found.fit.id}", found.unreadable)
            yield from self._lost_versions([found.fit for found in page])
        with self._database.read() as store:
            lost = store.fits.without_worker()
        for fit in lost:
            yield Finding(
                "fit_without_worker",
                f"fit {fit.id}",
                f"it is running on worker {fit.worker}, which is unknown",
                "start a worker, which requeues the fit within minutes, or cancel the fit",
            )

    def _lost_versions(self, page: list[Fit]) -> Iterator[Finding]:
        done = [fit for fit in page if fit.status is FitStatus.SUCCEEDED]
        numbers = {(fit.calibrator, number) for fit in done for number in fit.versions}
        with self._database.read() as store:
            named = store.inventory.fits_of_versions(numbers)
        for fit in done:
            for number in fit.versions:
                if named.get((fit.calibrator, number)) != fit.id:
                    yield Finding(
                        "fit_without_version",
                        f"fit {fit.id}",
                        f"its version {fit.calibrator_name}@{number} does not exist",
                        "restore the database from a backup, or submit the fit again",
                    )

    def _each(
        self,
        what: str,
        read: Callable[[Inventory, Place], list[Row]],
        first: Place,
        place: Callable[[Row], Place],
    ) -> Iterator[Row]:
        for one in chain.from_iterable(self._pages(read, first, place)):
            self._count(what)
            yield one

    def _pages(
        self,
        read: Callable[[Inventory, Place], list[Row]],
        first: Place,
        place: Callable[[Row], Place],
    ) -> Iterator[list[Row]]:
        """Yield pages, each read in its own transaction, because checking a page takes a while."""

        def read_one(after: Place) -> list[Row]:
            with self._database.read() as store:
                return read(store.inventory, after)

        return pages(read_one, first, place)

    def _count(self, what: str, number: int = 1) -> None:
        self.checked[what] += number
        self._progress(self.checked.total())

    def _damage(self, key: str, sha256: str) -> Damaged | None:
        try:
            for _ in self._blobs.chunks(key, sha256):
                pass
        except Damaged as error:
            return error
        return None
