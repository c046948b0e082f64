"""Databases from before are brought up to date with all that they hold."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import stored
from alembic import command
from backends import Backend
from live_service import in_process
from sqlalchemy import column, insert, table, update

from calibrators import archive
from calibrators.methods.temperature import TemperatureMap
from service.jobs.prepare import prepare_database
from service.settings import Settings
from service.storage.blobs import Blobs
from service.storage.database import Database
from service.storage.migrate import alembic_config, upgrade
from service.storage.tables import chores

FIRST = "0001"
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


def make_first_database(settings: Settings, content: bytes) -> None:
    """What the first release left: a version whose map lies under its hash."""
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


def test_a_version_from_before_is_still_served(backend: Backend, tmp_path: Path) -> None:
    settings = backend.settings(tmp_path, empty=True)
    content = archive.dump(TemperatureMap(k=3, temperature=2.0))
    make_first_database(Settings(**settings), content)
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


def test_migrations_make_the_tables_that_the_code_knows(backend: Backend, tmp_path: Path) -> None:
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
