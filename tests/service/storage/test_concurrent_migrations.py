"""Many processes may start on a database at once: one of them migrates it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.backends import Backend, Embedded
from helpers.live_service import ROOT
from sqlalchemy import text

from service.access.keys import workspace_named
from service.storage.database import Database
from service.storage.upgrade import upgrade

pytestmark = pytest.mark.both_backends

ROUNDS = 10
# migrates the databases given on stdin, and prints its log
STARTER = """
import logging, sys
from service.worker.startup import prepare_database
from service.storage.database import Database
said = []
class Keeper(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logger = logging.getLogger("service")
logger.addHandler(Keeper())
logger.setLevel("INFO")
for url in sys.stdin:
    database = Database(url.strip())
    prepare_database(database)
    database.close()
    print("; ".join(said) or "nothing", flush=True)
    said.clear()
"""


def new_database(backend: Backend, folder: Path, number: int) -> str:
    """Return the URL of an empty database."""
    if isinstance(backend, Embedded):
        return f"sqlite:///{folder}/{number}/calibrd.db"
    name = f"calibrd_empty_{number}"
    backend.database.execute(f"DROP DATABASE IF EXISTS {name}")
    backend.database.execute(f"CREATE DATABASE {name}")
    return backend.database.url(name)


def test_one_of_two_starters_migrates(backend: Backend, tmp_path: Path) -> None:
    urls = [new_database(backend, tmp_path, number) for number in range(ROUNDS)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    starters = [
        subprocess.Popen((sys.executable, "-c", STARTER), cwd=ROOT, text=True, **pipes)
        for _ in range(2)
    ]
    try:
        for url in urls:
            for starter in starters:
                starter.stdin.write(f"{url}\n")
                starter.stdin.flush()
            said = sorted(starter.stdout.readline().strip() for starter in starters)
            assert said[0].startswith("database_migrated")
            assert said[1] == "nothing"
        for starter in starters:
            starter.communicate(timeout=20)
            assert starter.returncode == 0
    finally:
        for starter in starters:
            starter.kill()
            starter.wait()
    for url in urls:
        database = Database(url)
        with database.read() as store:
            assert workspace_named(store, "default")
        database.close()


def test_a_database_of_a_newer_version_is_left_alone(backend: Backend, tmp_path: Path) -> None:
    url = new_database(backend, tmp_path, ROUNDS)
    database = Database(url)
    upgrade(database)
    with database.write() as store:
        store.session.execute(text("UPDATE calibrd_schema SET version_num = '9999'"))
    database.close()
    command = [sys.executable, "-m", "service", "migrate", "--database-url", url]
    done = subprocess.run(
        [*command, "--data-dir", str(tmp_path), "--blobs-url", (tmp_path / "blobs").as_uri()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "error: the database is at revision 9999, but this version of the service"
    )
