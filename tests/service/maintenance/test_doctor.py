"""The doctor reports every planted fault, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from alembic import command
from helpers import raw_blobs as stored
from helpers.backends import Backend
from helpers.commands import here
from helpers.fit_fixtures import Place, logits_and_labels
from helpers.run_posts import post
from helpers.workspace_contents import fitted_elsewhere
from sqlalchemy import delete, insert, select, update
from sqlalchemy import text as sql

from calibrators import CalibrationSet, archive
from calibrators.adafocal import BinStatistics
from calibrators.methods.auto import Auto
from service.access.permissions import Principal, Scope
from service.maintenance.doctor import Doctor
from service.maintenance.doctor_messages import Finding
from service.registry.registration import Registration, register
from service.runs.service import SentStatistics
from service.runs.sessions import Opening, open_session
from service.storage.blob_keys import dataset_key, judged_key, map_key, onnx_key, parse_key
from service.storage.database import Database
from service.storage.records import FitStatus
from service.storage.repository import new_id
from service.storage.run_tables import run_statistics, run_steps, runs
from service.storage.tables import alias_moves, aliases, fits, reports, versions
from service.storage.upgrade import alembic_config, revision_of

pytestmark = pytest.mark.both_backends


class Patient(Place):
    """A place with one object of each kind and a queued fit."""

    def fill(self) -> None:
        self.data = self.dataset()
        self.train()
        body = fitted_elsewhere()
        made = register(
            self.database,
            self.blobs,
            Principal(self.workspace, "tests", frozenset(Scope)),
            Registration(
                "digits",
                base64.b64decode(body["map"]),
                body["report"],
                base64.b64decode(body["judged_rows"]),
            ),
        )
        self.done = self.start_fit(self.data, ("temperature", {}))
        self.waiting = self.start_fit(self.data, ("temperature", {}))
        onnx = hashlib.sha256(b"onnx").hexdigest()
        self.blobs.put(onnx_key(self.workspace, made.id, onnx), b"onnx")
        named = {"onnx_sha256": onnx, "fit": self.done.id}
        self.change(update(versions).where(versions.c.id == made.id).values(**named))
        with self.database.write() as store:
            assert store.fits.start(self.done.id, worker="w", device="cpu") is not None
            store.fits.finish(self.done.id, 1, FitStatus.SUCCEEDED, versions=[1])
            version = store.calibrators.version(self.calibrator.id, 1)
            assert version is not None
            self.version = version
            alias = None
            for _ in range(2):
                alias = store.aliases.move(
                    self.calibrator.id,
                    "production",
                    version=1,
                    expected=alias,
                    by="tests",
                    reason="",
                )

    def train(self) -> None:
        """Create a run with three steps."""
        caller = Principal(self.workspace, "tests", frozenset(Scope))
        asked = Opening("job", "monitor", None, 1, "trainer", 60, "a", None, None, {}, "")
        statistics = BinStatistics.from_confidences([0.9], [True])
        with self.database.write() as store:
            open_session(store, caller, asked)
        for step in (1, 2, 3):
            post(self.database, caller, "job", SentStatistics("a", step, 0, statistics, None))

    def skip(self) -> None:
        """Make step 5 wait for step 4, which never arrives, for a long time."""
        caller = Principal(self.workspace, "tests", frozenset(Scope))
        statistics = BinStatistics.from_confidences([0.9], [True])
        post(self.database, caller, "job", SentStatistics("a", 5, 0, statistics, None))
        waits = run_statistics.c.statistics.is_not(None)
        self.change(update(run_statistics).where(waits).values(posted_at=1.0))

    def findings(self) -> list[Finding]:
        looking = Doctor(self.database, self.blobs, orphan_seconds=3600)
        return list(looking.findings())

    def replace_map(self, content: bytes) -> None:
        """Make the row name a blob that has its hash but is not a map."""
        sha256 = hashlib.sha256(content).hexdigest()
        self.blobs.put(map_key(self.workspace, self.version.id, sha256), content)
        mine = versions.c.id == self.version.id
        self.change(update(versions).where(mine).values(map_sha256=sha256))

    def replace_judged_rows(self, content: bytes) -> None:
        """Make the row name a blob that has its hash but holds no judged rows."""
        sha256 = hashlib.sha256(content).hexdigest()
        self.blobs.put(judged_key(self.workspace, self.version.id, sha256), content)
        mine = versions.c.id == self.version.id
        self.change(update(versions).where(mine).values(judged_sha256=sha256))

    def change(self, statement) -> None:
        with self.database.write() as store:
            store.session.execute(statement)

    @property
    def map(self) -> str:
        return map_key(self.workspace, self.version.id, self.version.map_sha256)

    @property
    def onnx(self) -> str:
        return onnx_key(self.workspace, self.version.id, str(self.version.onnx_sha256))

    @property
    def judged_rows(self) -> str:
        return judged_key(self.workspace, self.version.id, str(self.version.judged_sha256))

    @property
    def bytes(self) -> str:
        return dataset_key(self.workspace, self.data.id, str(self.data.sha256))


JSON = "CAST(:told AS json)"
Fault = Callable[[Patient], None]
TABLES = (versions, reports, aliases, alias_moves, fits, run_statistics, run_steps)


@contextmanager
def healed_after(place: Patient) -> Iterator[Patient]:
    """Restore all rows and blobs at the end."""
    blobs = {key: stored.content(place.blobs, key) for key in stored.keys(place.blobs)}
    with place.database.read() as store:
        rows = {table: store.session.execute(select(table)).mappings().all() for table in TABLES}
    yield place
    for key, content in blobs.items():
        stored.overwrite(place.blobs, key, content)
    with place.database.write() as store:
        for table in reversed(TABLES):
            store.session.execute(delete(table))
        for table in TABLES:
            store.session.execute(insert(table), [dict(row) for row in rows[table]])


@pytest.fixture(scope="module")
def filled(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    with closing(Patient(**backend.settings(tmp_path_factory.mktemp("patient")))) as made:
        made.fill()
        yield made


@pytest.fixture
def patient(filled: Patient) -> Iterator[Patient]:
    with healed_after(filled) as made:
        yield made


def unread(table: str, column: str, text: str) -> Fault:
    """Write invalid JSON to a column; on PostgreSQL, valid JSON of another shape."""

    def plant(it: Patient) -> None:
        told, value = (text, ":told") if it.database.is_sqlite else (json.dumps(text), JSON)
        it.change(sql(f"UPDATE {table} SET {column} = {value}").bindparams(told=told))  # noqa: S608

    return plant


def without_calibrator(it: Patient) -> None:
    """Insert a version of a missing calibrator, bypassing the constraints."""
    mine = versions.c.id == it.version.id
    with it.database.engine.connect() as connection:
        row = dict(connection.execute(select(versions).where(mine)).mappings().one())
    row |= {"calibrator": "cb_gone", "id": None, "fit": None}
    with it.database.unlimited.connect() as connection:
        if it.database.is_sqlite:
            connection.connection.execute("PRAGMA foreign_keys=OFF")
        else:
            connection.execute(sql("SET session_replication_role = replica"))
        connection.execute(insert(versions).values(row))
        connection.commit()
        connection.invalidate()  # later statements obey the constraints


SECOND = alias_moves.c.revision == 2
FAULTS: dict[str, Fault] = {
    "map_missing": lambda it: stored.remove(it.blobs, it.map),
    "map_corrupt": lambda it: stored.overwrite(it.blobs, it.map, b"other"),
    "map_unreadable": lambda it: it.replace_map(b"no map"),
    "map_differs": lambda it: it.change(
        update(versions).where(versions.c.id == it.version.id).values(classes=7)
    ),
    "onnx_missing": lambda it: stored.remove(it.blobs, it.onnx),
    "onnx_corrupt": lambda it: stored.overwrite(it.blobs, it.onnx, b"other"),
    "judged_rows_missing": lambda it: stored.remove(it.blobs, it.judged_rows),
    "judged_rows_corrupt": lambda it: stored.overwrite(it.blobs, it.judged_rows, b"other"),
    "judged_rows_unreadable": lambda it: it.replace_judged_rows(b"no rows"),
    "report_missing": lambda it: it.change(
        delete(reports).where(reports.c.calibrator == it.calibrator.id)
    ),
    "report_unreadable": lambda it: it.change(
        update(reports)
        .where(reports.c.calibrator == it.calibrator.id)
        .values(document={"format": 0})
    ),
    "row_unreadable": unread("versions", "params", "xx"),
    "version_without_calibrator": without_calibrator,
    "dataset_missing": lambda it: stored.remove(it.blobs, it.bytes),
    "dataset_corrupt": lambda it: stored.overwrite(it.blobs, it.bytes, b"other"),
    "fit_without_version": lambda it: it.change(
        update(fits).where(fits.c.id == it.done.id).values(versions=[1, 2])
    ),
    "steps_missing": lambda it: it.change(delete(run_steps).where(run_steps.c.step == 2)),
    "statistics_waiting": Patient.skip,
    "fit_without_worker": lambda it: it.change(
        update(fits).where(fits.c.id == it.waiting.id).values(status="running", worker="gone")
    ),
}
CHANGED: dict[str, tuple[str, Fault]] = {
    "verdict": (
        "row_differs",
        lambda it: it.change(update(versions).values(verdict="worse")),
    ),
    "no verdict": ("row_differs", lambda it: it.change(update(versions).values(verdict=None))),
    "method": ("row_differs", lambda it: it.change(update(versions).values(method="smart"))),
    "judged data": ("row_differs", lambda it: it.change(update(versions).values(judged_data="0"))),
    "tags": ("row_unreadable", unread("versions", "tags", '["a"]')),
    "a report that is no JSON": ("report_unreadable", unread("reports", "document", "xx")),
    "a report that is a text": ("report_unreadable", unread("reports", "document", '"xx"')),
    "a fit's progress": ("row_unreadable", unread("fits", "progress", "xx")),
    "a fit's order": ("row_unreadable", unread("fits", '"order"', "xx")),
}
HISTORIES: dict[str, Fault] = {
    "a move is gone": lambda it: it.change(
        delete(alias_moves).where(
            alias_moves.c.calibrator == it.calibrator.id, alias_moves.c.revision == 1
        )
    ),
    "the last move says other": lambda it: it.change(
        update(alias_moves)
        .where(alias_moves.c.calibrator == it.calibrator.id, SECOND)
        .values(to_version=9)
    ),
    "a move was not counted": lambda it: it.change(
        update(aliases).where(aliases.c.calibrator == it.calibrator.id).values(revision=1)
    ),
}


def test_all_is_well(patient: Patient) -> None:
    looking = Doctor(patient.database, patient.blobs, orphan_seconds=-60)
    assert list(looking.findings()) == []
    assert looking.checked == {
        "versions": 1,
        "aliases": 1,
        "datasets": 1,
        "fits": 2,
        "sessions of runs": 1,
    }
    assert looking.orphans == 0
    orphan = map_key(patient.workspace, new_id("ver"), patient.version.map_sha256)
    patient.blobs.put(orphan, b"orphan")
    assert list(looking.findings()) == []
    assert looking.orphans == 1
    patient.blobs.delete(orphan)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_reported_with_advice(patient: Patient, fault: str) -> None:
    FAULTS[fault](patient)
    (found,) = patient.findings()
    assert found.code == fault
    assert found.problem
    assert found.advice
    subjects = {"d": f"dataset {patient.data.id}", "f": "fit fit_", "s": "session a of the run job"}
    subject = subjects.get(fault[0], "version digits@1")
    if fault == "version_without_calibrator":
        subject = "version cb_gone@1"
    assert found.subject.startswith(subject)


def test_statistics_of_an_archived_run_may_wait(patient: Patient) -> None:
    patient.skip()
    (found,) = patient.findings()
    assert "at step 3, but 1 statistics, the first for step 5, have been waiting" in found.problem
    patient.change(update(runs).values(archived_at=2.0))
    try:
        assert patient.findings() == []
    finally:
        patient.change(update(runs).values(archived_at=None))


@pytest.mark.parametrize("what", CHANGED)
def test_a_row_that_was_changed_by_hand(patient: Patient, what: str) -> None:
    code, plant = CHANGED[what]
    plant(patient)
    found = patient.findings()
    assert {finding.code for finding in found} == {code}
    fits_of_it = {f"fit {patient.done.id}", f"fit {patient.waiting.id}"}
    assert {finding.subject for finding in found} == (
        fits_of_it if what.startswith("a fit") else {"version digits@1"}
    )


def test_a_map_chosen_by_another_method_is_not_a_fault(patient: Patient) -> None:
    chosen = Auto(candidates=("temperature",)).fit(CalibrationSet(**logits_and_labels(300)))
    assert chosen.method != Auto.name
    patient.replace_map(archive.dump(chosen))
    for method, codes in ((Auto.name, []), (chosen.method, []), ("smart", ["row_differs"])):
        patient.change(update(versions).values(method=method))
        assert [finding.code for finding in patient.findings()] == codes


def test_an_unreadable_row_hides_no_other_fault(patient: Patient) -> None:
    unread("versions", "params", "xx")(patient)
    stored.remove(patient.blobs, patient.map)
    stored.remove(patient.blobs, patient.bytes)
    codes = [finding.code for finding in patient.findings()]
    assert codes == ["row_unreadable", "map_missing", "dataset_missing"]


@pytest.mark.parametrize("fault", HISTORIES)
def test_a_history_that_does_not_lead_where_the_alias_points(patient: Patient, fault: str) -> None:
    HISTORIES[fault](patient)
    (found,) = patient.findings()
    assert (found.code, found.subject) == ("alias_history", "alias digits@production")


def test_an_alias_of_a_missing_version(patient: Patient) -> None:
    mine = patient.calibrator.id
    patient.change(update(aliases).where(aliases.c.calibrator == mine).values(version=9))
    moved = update(alias_moves).where(alias_moves.c.calibrator == mine, SECOND)
    patient.change(moved.values(to_version=9))
    (found,) = patient.findings()
    assert (found.code, found.subject) == ("alias_dangling", "alias digits@production")


def test_the_command_reports_faults_and_its_exit_code_too(patient: Patient) -> None:
    chosen = [
        f"--{name.replace('_', '-')}={getattr(patient.settings, name)}"
        for name in ("data_dir", "database_url", "blobs_url")
    ]
    well = here("doctor", *chosen)
    assert (well.returncode, well.stdout) == (
        0,
        "1 versions, 1 aliases, 1 datasets, 2 fits, 1 sessions of runs, 0 orphan blobs, "
        "0 findings\n",
    )
    stored.remove(patient.blobs, patient.map)
    ill = here("doctor", "--json", *chosen)
    finding, summary = map(json.loads, ill.stdout.splitlines())
    assert (ill.returncode, finding["code"], summary["findings"]) == (1, "map_missing", 1)
    line = here("doctor", *chosen).stdout.splitlines()[0]
    assert line.startswith("map_missing: version digits@1: the stored bytes are missing; restore")
    assert patient.map in line


def test_sweep_reports_what_it_does(patient: Patient) -> None:
    chosen = [
        f"--{name.replace('_', '-')}={getattr(patient.settings, name)}"
        for name in ("data_dir", "database_url", "blobs_url")
    ]
    kept = len([key for key in stored.keys(patient.blobs) if parse_key(key)])
    for flags in ((), ("--dry-run",)):
        done = here("sweep", *flags, *chosen)
        assert done.returncode == 0
        did = "would delete" if flags else "deleted"
        assert done.stdout == f"{did} 0 orphans; kept {kept} blobs in use or new\n"
    refused = here("sweep", "--sweep-hours=0", *chosen)
    assert (refused.returncode, "--sweep-hours is 0" in refused.stderr) == (2, True)
    early = here("sweep", "--sweep-hours=1", *chosen)
    assert (early.returncode, "must be 0 or at least 2" in early.stderr) == (2, True)


def test_a_wrong_place_is_reported_and_nothing_is_created(tmp_path: Path) -> None:
    for verb in ("doctor", "sweep"):
        done = here(verb, f"--data-dir={tmp_path / 'none'}")
        assert (done.returncode, done.stdout) == (2, "")
        assert "there is no database at" in done.stderr
        assert list(tmp_path.iterdir()) == []


def test_an_older_database_is_not_changed_by_reading_it(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path}/calibrd.db")) as database:
        command.upgrade(alembic_config(database), "0001")
        done = here("doctor", f"--data-dir={tmp_path}")
        assert (done.returncode, "run `python -m service migrate`" in done.stderr) == (2, True)
        assert revision_of(database) == "0001"
