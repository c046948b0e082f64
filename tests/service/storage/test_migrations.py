"""Older databases are migrated with all their data."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from helpers import raw_blobs as stored
from helpers.backends import Backend, Embedded
from helpers.live_service import ROOT, in_process
from sqlalchemy import JSON, column, insert, inspect, select, table, text, update

from calibrators import archive
from calibrators.methods.temperature import TemperatureMap
from service.cli.open_store import prepared
from service.errors import Invalid
from service.settings import Settings
from service.storage.blobs import Blobs
from service.storage.database import Database
from service.storage.schema_check import differences
from service.storage.tables import chores
from service.storage.upgrade import MIGRATIONS, alembic_config, check_current, upgrade
from service.worker.startup import prepare_database

pytestmark = pytest.mark.both_backends

FIRST = "0001"
BEFORE_REPAIR = "0005"
BEFORE_SEGMENTS = "0010"
BEFORE_CLAIMS = "0012"
WORKSPACE = "ws_00000000000000000000"
ROWS = {
    "workspaces": {"id": WORKSPACE, "name": "default"},
    "calibrators": {"id": "cb_1", "workspace": WORKSPACE, "name": "digits", "last_version": 1},
    "versions": {
        "calibrator": "cb_1",
        "number": 1,
        "method": "temperature",
        "params": json.dumps({}),
        "kind": "logits",
        "classes": 3,
        "fit_info": json.dumps({}),
        "libraries": json.dumps({}),
        "map_sha256": "",
        "map_bytes": 1,
        "tags": json.dumps({}),
        "description": "",
        "created_by": "tests",
    },
}

# SHA-256 of every migration. They run once on each database, so they never change: if this
# fails, undo the edit and write a new migration (with its hash here) instead.
MIGRATION_HASHES = {
    "0001": "d5c9ab5dec2e1a76aee90393cdbe0192da603c3ab3029f4b9514bd803d6f4b03",
    "0002": "480f6ffc8430dc7a1cdae78408e6fa59d40427406e06e84c4f4e3f46b6284fe7",
    "0003": "f400a8c1f1acf5da69d46602fce8d962ca2ace5973f239e74b2b78ffeb3f39ea",
    "0004": "517fe86aac7c864e01b5293b816b805277e7c14b7fef61de920457b9ec26f263",
    "0005": "78d0b60d3b0764642e29a179a5839f2696a755f1b1ef507cdc4c2d4e4ce8148c",
    "0006": "279104665ce8e5b6d5abd2d81eb6918b34d1292e5373a9157f52f017001206ef",
    "0007": "e7abed12d5fd686b0c08ca0534384ecc689dda51604af871bcee79dc2a597500",
    "0008": "4d2f28186dde6c3cccf608e10f915adb241f12736476c2b41007f922250d69fc",
    "0009": "f1a3d3030fe3ef6c1e62aa8f9986ac34cc39d398390f220c2494764eb9bd7835",
    "0010": "02841b8f9b56887a8ba7cc0063e0196764383107e1af91639917aa850e122951",
    "0011": "b39e8a80c134e8afce9bccfc2d423c480701cd7d48cbb177ae7c4f4cf9cc696a",
    "0012": "3ec44145588c8bcae875f702d958a1c090666c245cab93df769660071d258157",
    "0013": "6d49d3e47fada51d72fbad0affb84bcff7d872035da9ab5303653501445f7e78",
    "0014": "acb4b0772fffa3781f6ffdf89cefbaf5b76ae365e8d6a62c8248265a568ab591",
    "0015": "1f6d5fbfd2cbbf648bdcaf1b1a910f39d2137b04db3a1ed1fcf7bf30d63e0c38",
    "0016": "9a6e14a3efb288bfcffe084c790c92ea9c2dcec421441df0bbcda7acd14c5ffa",
    "0017": "0047a20174ad2f48eac64e23e1745edecfec764c698665726d1ce4b4cf5cbddf",
    "0018": "47687ea2d4378e7936707d7413f7e44e053b4505593e6cbb26838054aebacda5",
}


def make_first_database(settings: Settings, content: bytes) -> None:
    """Create a database of the first release: a version whose map is stored under its hash."""
    sha256 = hashlib.sha256(content).hexdigest()
    Blobs(settings.blobs).put(f"{WORKSPACE}/maps/{sha256}", content)
    database = Database(settings.database)
    command.upgrade(alembic_config(database), FIRST)
    with database.write() as store:
        for name, facts in ROWS.items():
            row = {**facts, "created_at": 1.0}
            if name == "versions":
                row["map_sha256"] = sha256
            there = table(name, *(column(one) for one in row))
            store.session.execute(insert(there).values(row))
    database.close()


def test_an_older_version_is_still_served(backend: Backend, tmp_path: Path) -> None:
    settings = backend.settings(tmp_path, empty=True)
    content = archive.dump(TemperatureMap(k=3, temperature=2.0))
    make_first_database(Settings(**settings), content)
    prepared(Settings(**settings)).close()
    with in_process(**settings) as client:
        assert client.get("/v1/calibrators/digits@1/predict?logits=3,1,0").status_code == 200
        assert client.get("/v1/calibrators/digits/versions/1/map").content == content
        parts = client.app.state.parts
        (old,) = stored.keys(parts.blobs)
        with parts.database.read() as store:
            version = store.calibrators.version("cb_1", 1)
        assert version is not None
        assert version.id is None
        assert old.endswith(f"/maps/{version.map_sha256}")


def test_migrations_create_the_tables_that_the_code_defines(
    backend: Backend, tmp_path: Path
) -> None:
    database = Database(Settings(**backend.settings(tmp_path, empty=True)).database)
    prepare_database(database)
    config = alembic_config(database)
    command.check(config)
    command.downgrade(config, FIRST)
    upgrade(database)
    command.check(config)
    database.close()


def test_a_chore_is_done_by_one_of_many_and_again_when_it_is_due(
    backend: Backend, tmp_path: Path
) -> None:
    database = Database(Settings(**backend.settings(tmp_path)).database)
    prepare_database(database)

    def claim(every: float) -> bool:
        with database.write() as store:
            return store.chores.claim("sweep", every)

    with ThreadPoolExecutor(8) as many:
        assert sum(many.map(claim, [60.0] * 8)) == 1
        with database.write() as store:
            store.session.execute(update(chores).values(done_at=chores.c.done_at - 61))
        assert sum(many.map(claim, [60.0] * 8)) == 1
    database.close()


@pytest.mark.parametrize("job", ["fit", "somebody-elses"])
def test_tables_of_dbos_are_dropped_unless_others_use_them(
    backend: Backend, tmp_path: Path, job: str
) -> None:
    database = Database(Settings(**backend.settings(tmp_path, empty=True)).database)
    command.upgrade(alembic_config(database), BEFORE_CLAIMS)
    schema = None if database.is_sqlite else "dbos"
    jobs = table("workflow_status", column("name"), schema=schema)
    with database.write() as store:
        if schema is not None:
            store.session.execute(text(f"CREATE SCHEMA {schema}"))
        for name in ("workflow_status", "dbos_migrations"):
            place = name if schema is None else f"{schema}.{name}"
            store.session.execute(text(f"CREATE TABLE {place} (name TEXT)"))
        store.session.execute(insert(jobs).values(name=job))
    prepare_database(database)
    names = inspect(database.engine).get_table_names(schema=schema)
    assert ("workflow_status" in names) == (job != "fit")
    database.close()


def test_migrations_are_not_edited() -> None:
    files = sorted((MIGRATIONS / "versions").glob("*.py"))
    found = {one.name[:4]: hashlib.sha256(one.read_bytes()).hexdigest() for one in files}
    assert found == MIGRATION_HASHES, "add a new migration, never edit one that was committed"


def execute(database: Database, *statements: str) -> None:
    with database.unlimited.begin() as connection:
        for one in statements:
            connection.exec_driver_sql(one)


RUN = "INSERT INTO runs (id, workspace, name, kind, tags, description, created_by, created_at, "
RUN += f"updated_at) VALUES ('run_1', '{WORKSPACE}', 'job', 'monitor', '{{}}', '', 't', 1, 1)"
SESSION = "INSERT INTO run_sessions (run, number, id, base_step, world_size, decides, "
SESSION += "merge_timeout, created_by, created_at) "
SESSION += "VALUES ('run_1', 1, 'a', 0, 1, 'trainer', 60, 't', 42.5)"


def test_a_database_of_a_commit_between_releases_is_repaired(
    backend: Backend, tmp_path: Path
) -> None:
    settings = backend.settings(tmp_path, empty=True)
    database = Database(Settings(**settings).database)
    command.upgrade(alembic_config(database), BEFORE_REPAIR)
    place = f"INSERT INTO workspaces VALUES ('{WORKSPACE}', 'default', 1)"  # noqa: S608
    execute(
        database,
        "DROP INDEX ix_fits_workspace_status_created_at",
        "DROP INDEX ix_run_steps_run_step",
        "ALTER TABLE chores DROP COLUMN note",
        "ALTER TABLE run_sessions DROP COLUMN begun_at",
        "INSERT INTO chores (name, done_at) VALUES ('sweep', 1)",
        place,
        RUN,
        SESSION,
    )
    database.close()
    prepared(Settings(**settings)).close()
    with in_process(**settings) as client:
        (run,) = client.get("/v1/runs").json()["items"]
        assert run["name"] == "job"
        (session,) = client.get("/v1/runs/job").json()["sessions"]
        assert session["begun_at"].startswith("1970-01-01T00:00:42.5")
        with client.app.state.parts.database.read() as store:
            assert store.chores.note("sweep") == ""
        assert differences(client.app.state.parts.database) == []


def test_segments_get_their_name_in_datasets_and_reports(backend: Backend, tmp_path: Path) -> None:
    database = Database(Settings(**backend.settings(tmp_path, empty=True)).database)
    config = alembic_config(database)
    command.upgrade(config, BEFORE_SEGMENTS)
    reports = table("reports", column("calibrator"), column("number"), column("document", JSON))
    old = {"format": 1, "n": 3, "groups": 1, "by_group": [{"name": "web"}]}
    new = {"format": 2, "n": 3, "segments": 1, "by_segment": [{"name": "web"}]}
    dataset = {"id": "ds_1", "workspace": WORKSPACE, "groups": 2, "delete_after_fit": False}
    report = {"calibrator": "cb_1", "number": 1, "document": old}
    with database.write() as store:
        for name, facts in {**ROWS, "datasets": dataset}.items():
            row = {**facts, "created_at": 1.0}
            there = table(name, *(column(one) for one in row))
            store.session.execute(insert(there).values(row))
        store.session.execute(insert(reports).values(report))

    def stored(name: str) -> tuple[object, object]:
        with database.read() as store:
            counted = store.session.execute(select(column(name)).select_from(table("datasets")))
            document = store.session.execute(select(reports.c.document))
            return counted.scalar_one(), document.scalar_one()

    command.upgrade(config, "head")
    assert stored("segments") == (2, new)
    command.downgrade(config, BEFORE_SEGMENTS)
    assert stored("groups") == (2, old)
    database.close()


CHANGES = {
    "the table run_sessions lacks the column merge_timeout": (
        "ALTER TABLE run_sessions DROP COLUMN merge_timeout"
    ),
    "the table fits lacks the index ix_fits_lost": "DROP INDEX ix_fits_lost",
    "the table chores is missing": "DROP TABLE chores",
    "the table chores has an additional column extra that must be set": None,
}


@pytest.mark.parametrize("words", CHANGES)
def test_a_schema_that_differs_from_its_revision_is_refused(
    backend: Backend, tmp_path: Path, words: str
) -> None:
    database = Database(Settings(**backend.settings(tmp_path)).database)
    change = CHANGES[words]
    if change is None:
        execute(
            database,
            "DROP TABLE chores",
            "CREATE TABLE chores (name VARCHAR(40) NOT NULL CONSTRAINT pk_chores PRIMARY KEY, "
            "done_at FLOAT NOT NULL, note VARCHAR(100) NOT NULL, extra INTEGER NOT NULL)",
        )
    else:
        execute(database, change)
    for opened in (prepare_database, check_current):
        with pytest.raises(Invalid, match=re.escape(words)) as refused:
            opened(database)
        assert refused.value.code == "schema_differs"
        assert "docs/how-to/upgrade.md" in refused.value.message
    database.close()


def test_additions_to_the_schema_do_no_harm(backend: Backend, tmp_path: Path) -> None:
    database = Database(Settings(**backend.settings(tmp_path)).database)
    execute(
        database,
        "CREATE TABLE theirs (id INTEGER PRIMARY KEY, word VARCHAR(3))",
        "CREATE INDEX theirs_too ON fits (worker)",
        "ALTER TABLE fits ADD COLUMN theirs INTEGER",
    )
    prepare_database(database)
    database.close()


def test_serve_reports_a_schema_that_differs(tmp_path: Path) -> None:
    settings = Embedded().settings(tmp_path)
    database = Database(Settings(**settings).database)
    execute(database, "DROP INDEX ix_fits_lost")
    database.close()
    command_line = [sys.executable, "-m", "service", "serve", "--port", "0", "--workers", "0"]
    done = subprocess.run(
        [*command_line, "--data-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "lacks the index ix_fits_lost" in done.stderr
    assert "Traceback" not in done.stderr
