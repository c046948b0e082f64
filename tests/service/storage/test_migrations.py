"""Older databases are migrated with all their data."""

from __future__ import annotations

import ast
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

# SHA-256 of the code of every migration, without docstrings. Migrations run once on each database,
# so they never change: if this fails, undo the edit and write a new migration (with its hash here).
MIGRATION_HASHES = {
    "0001": "387196ffcdc2800e29f43ebab9c955bf5538bcf303e1e7e6bf2d0484959eb395",
    "0002": "ed3dff219cafe3d8afe0329a3bd1e9a4a4a2a5b4d2118133b53d64ae5ed935c5",
    "0003": "977912ba1116da789b8e338bb930a73e4a08c5c83166832f952929ec28958187",
    "0004": "180a902c234c7de5fcac4a71754e1b33611f018363b0d690baa7c3bc878d3d5f",
    "0005": "6a1bdaef599e1a2ae87ff03cc53a07c6b70c6eeaa381fcc3bdd12e7dc81db2cb",
    "0006": "397aad1ba5122ac2074b4d1e8e9d69526740a13e74f00667954216c5d850eb1c",
    "0007": "644351ad5cba22780abe84414c805295675ca85bb1b078d05a79fd33c0100862",
    "0008": "bead466dfb1ad79754b24a772a1be543e1e52e0e99932bf4343e2df2da00a786",
    "0009": "671c1261bc8487db8c066fa8bbaad4040d8b4028aab023ed67abde3f64fe38f3",
    "0010": "caad0dd8ea0bec1690420e57fd5f0d4cc6fe73f907173408a940d48c39624767",
    "0011": "4ed1acb468a73d9f70345f26ab129c696b4ad6bb5bc8d585522138ee63789ff3",
    "0012": "a34afea5d08681cccc49f03628082cdac5619cb8aae46c6836e942cb91cb36e9",
    "0013": "79131a59438de53aa857085a4104ec23e1d8b2e3e5fd274c7b3e1c46bf60bdbf",
    "0014": "13c3fbe7cc5210b57e448d2b3af0feecbfbf50e2ddbf1f4954af93a98ca1da4b",
    "0015": "ed6ae861648bc641d38157c5209a86ff058ae233de06be9f3010149ef6e64ae8",
    "0016": "b201453609ccad1e6fe82e0493565a061aa91337d2126ce2c38f8377c4bd0a07",
    "0017": "745341790efcd2e916693e314b45fb8833627c607100efba8afefb21d87c4c97",
    "0018": "e22d97ca47d2d41d387cd3ecc3a6338f623e3e0dcae45913f94852938d820f45",
    "0019": "5933bbd033f7b7726cb172acf63aafcffed91ab260d213063d70a8a2602f54ae",
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
    found = {one.name[:4]: hashlib.sha256(code_of(one).encode()).hexdigest() for one in files}
    assert found == MIGRATION_HASHES, "add a new migration, never edit one that was committed"


def code_of(file: Path) -> str:
    """Return the code of a module without docstrings, comments and layout."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


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
