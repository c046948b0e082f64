"""A database, blobs and a dataset for tests of fits, and queries on them."""

from __future__ import annotations

import hashlib
import io
import itertools
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import make_url

from helpers.backends import add_database, environment
from helpers.raw_blobs import keys
from service.access.permissions import Principal, Scope
from service.fits.execution import FitAttempt, Stop, attempt_of
from service.fits.service import CPU
from service.settings import Settings
from service.storage.blob_keys import dataset_key
from service.storage.blobs import Blobs
from service.storage.database import Database
from service.storage.records import Dataset, Fit, FitStatus
from service.storage.repository import new_id
from service.storage.write_turns import WriteTurns

FINAL = tuple(status for status in FitStatus if status.is_final)


def logits_and_labels(n: int = 2000, k: int = 5, seed: int = 0) -> dict[str, Any]:
    """Return logits that are three times too large, and labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * 2
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return {"logits": (3 * logits).astype(np.float32), "labels": labels}


class Hooks:
    """Records what a fit reports; optionally stops the fit with a reason, or raises an error."""

    def __init__(self, stop: Stop | None = None, error: BaseException | None = None) -> None:
        self.told: list[dict[str, Any]] = []
        self._stop = stop
        self._error = error

    def progress(self, told: dict[str, Any]) -> None:
        self.told.append(told)
        if self._error is not None:
            raise self._error

    def stop(self) -> Stop | None:
        return self._stop


class Place:
    """A data directory with a workspace and a calibrator."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        if not settings.get("database_url"):
            add_database(data_dir)
        self.settings = Settings(data_dir=data_dir, log_format="console", **settings)
        self.database = Database(self.settings.database)
        self.blobs = Blobs(self.settings.blobs)
        self._seeds = itertools.count()
        with self.database.write() as store:
            workspace = store.keys.workspace_named("default")
            assert workspace is not None
            self.workspace = workspace.id
            self.calibrator = store.calibrators.add(self.workspace, "digits")

    def enter_new_workspace(self) -> None:
        """Switch to a new workspace; a workspace that lost workers waits before its next fit."""
        with self.database.write() as store:
            self.workspace = store.keys.add_workspace(f"w{next(self._seeds)}").id
            self.calibrator = store.calibrators.add(self.workspace, "digits")

    @property
    def environment(self) -> dict[str, str]:
        """Return the settings of a process that uses this place."""
        return environment(self.settings.model_dump(exclude_unset=True))

    def put_to_sleep(self, process: subprocess.Popen[Any]) -> None:
        """Pause a process, but not while it holds SQLite's lock, which would block all others."""
        for _ in range(50):
            process.send_signal(signal.SIGSTOP)
            if self._can_be_written_to():
                return
            process.send_signal(signal.SIGCONT)
            time.sleep(0.05)
        raise AssertionError("it held the lock whenever it was stopped")

    def _can_be_written_to(self) -> bool:
        url = make_url(self.settings.database)
        if url.get_backend_name() != "sqlite":
            return True  # which ends an idle transaction
        connection = sqlite3.connect(str(url.database), timeout=1.0, isolation_level=None)
        try:
            with WriteTurns(Path(str(url.database))).turn(1.0):
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
        except (TimeoutError, sqlite3.OperationalError):
            return False
        finally:
            connection.close()
        return True

    def close(self) -> None:
        """Close the connections."""
        self.database.close()

    def dataset(self, *, delete_after_fit: bool = False, **arrays: Any) -> Dataset:
        """Create a dataset with new bytes."""
        arrays = arrays or logits_and_labels(seed=next(self._seeds))
        file = io.BytesIO()
        np.savez(file, **arrays)
        content, id = file.getvalue(), new_id("ds")
        sha256 = hashlib.sha256(content).hexdigest()
        self.blobs.put(dataset_key(self.workspace, id, sha256), content)
        with self.database.write() as store:
            return store.datasets.add(
                self.workspace,
                id,
                kind="logits",
                delete_after_fit=delete_after_fit,
                keep_seconds=None,
                sha256=sha256,
                format="npz",
                bytes=len(content),
                rows=len(arrays["labels"]),
                classes=arrays["logits"].shape[1],
            )

    def has_bytes_of(self, dataset: Dataset) -> bool:
        """Return whether the bytes of a dataset are still stored."""
        return dataset_key(self.workspace, dataset.id, dataset.sha256 or "") in keys(self.blobs)

    def start_fit(
        self,
        dataset: Dataset,
        *methods: tuple[str, dict[str, Any]],
        evaluation: Dataset | None = None,
        queue: str = CPU,
        **order: Any,
    ) -> Fit:
        """Add a fit to the queue."""
        wanted = [{"method": method, "params": params} for method, params in methods]
        nothing = {"seed": 0, "held_out": None, "model": None, "tags": {}, "description": ""}
        with self.database.write() as store:
            return store.fits.add(
                self.workspace,
                calibrator=self.calibrator.id,
                calibrator_name=self.calibrator.name,
                order={"methods": wanted, **nothing, **order},
                dataset=dataset.id,
                evaluation=None if evaluation is None else evaluation.id,
                queue=queue,
                created_by="tests",
            )

    def fit(self, id: str) -> Fit:
        """Return the current state of a fit."""
        with self.database.read() as store:
            found = store.fits.get(id)
        assert found is not None
        return found

    def wait(
        self, fit: Fit, statuses: Iterable[FitStatus] = FINAL, *, seconds: float = 90.0
    ) -> Fit:
        """Return a fit as soon as it has one of the statuses."""
        deadline = time.monotonic() + seconds
        while (found := self.fit(fit.id)).status not in statuses:
            assert time.monotonic() < deadline, f"still {found.status} after {seconds} s: {found}"
            time.sleep(0.02)
        return found

    def versions_of(self, fit: Fit) -> list[int]:
        """Return the numbers of all versions created by a fit."""
        with self.database.read() as store:
            versions = store.calibrators.versions(fit.calibrator, 1000, None)
        return sorted(version.number for version in versions if version.fit == fit.id)


def begin(database: Database, id: str, *, worker: str, device: str) -> FitAttempt | None:
    """Claim a fit regardless of whose turn it is; return None if it is not queued."""
    with database.write() as store:
        fit = store.fits.start(id, worker=worker, device=device)
        return None if fit is None else attempt_of(store, fit)


def principal(place: Place) -> Principal:
    return Principal(place.workspace, "tests", frozenset(Scope))


def add_version(place: Place, **facts: object) -> None:
    known = {
        "method": "temperature",
        "params": {},
        "kind": "logits",
        "classes": 3,
        "verdict": "improved",
        "fit_info": {},
        "libraries": {},
        "map_sha256": "0" * 64,
        "map_bytes": 100,
        "blob_bytes": 100,
        "tags": {},
        "description": "",
        "created_by": "tests",
    }
    with place.database.write() as store:
        number = len(store.calibrators.numbers(place.calibrator.id, 1000))
        store.calibrators.add_version(
            place.calibrator.id, f"ver_{place.calibrator.id}_{number}"[:40], None, **known | facts
        )
