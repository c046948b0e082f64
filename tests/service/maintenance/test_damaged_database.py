"""Damage to the embedded database is named, by the doctor and while serving."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from helpers.backends import add_database
from helpers.commands import here
from helpers.live_service import in_process

PAGE_OF = "SELECT rootpage FROM sqlite_master WHERE name = ?"


def damaged(folder: Path, where: str) -> Path:
    """Damage a database: the root page of a table or index, the first page or the second half."""
    add_database(folder)
    file = folder / "calibrd.db"
    if where == "half":
        os.truncate(file, file.stat().st_size // 2)
        return file
    with closing(sqlite3.connect(file)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (page,) = connection.execute(PAGE_OF, (where,)).fetchone() or (1,)
    with file.open("r+b") as opened:
        opened.seek((page - 1) * size + (16 if where == "header" else 0))
        opened.write(b"\xff" * 200)
    return file


@pytest.mark.parametrize(
    ("where", "problem", "advice"),
    [
        ("header", "file is not a database", "restore a backup"),
        ("half", "malformed", "restore a backup"),
        ("versions", "the table versions cannot be read", "restore a backup"),
        ("ix_fits_workspace_created_at", "malformed", "rebuild the indexes"),
    ],
)
def test_the_doctor_names_damage(where: str, problem: str, advice: str, tmp_path: Path) -> None:
    file = damaged(tmp_path, where)
    before = file.read_bytes()
    done = here("doctor", "--json", f"--data-dir={tmp_path}")
    assert done.returncode == 1
    found, summary = map(json.loads, done.stdout.splitlines())
    assert found["code"] == "database_damaged"
    assert problem in found["problem"]
    assert found["advice"].startswith(advice) or advice in found["advice"]
    assert summary == {"code": "summary", "findings": 1}
    assert "database_damaged" in here("doctor", f"--data-dir={tmp_path}").stdout
    assert file.read_bytes() == before


def test_the_documented_command_rebuilds_indexes(tmp_path: Path) -> None:
    file = damaged(tmp_path, "ix_fits_workspace_created_at")
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("VACUUM INTO ?", (str(tmp_path / "repaired.db"),))
    (tmp_path / "repaired.db").replace(file)
    assert here("doctor", f"--data-dir={tmp_path}").returncode == 0


def test_a_call_that_meets_damage_gets_503_without_a_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    damaged(tmp_path, "ix_fits_workspace_created_at")
    with in_process(data_dir=tmp_path) as client:
        refused = client.get("/v1/fits")
        assert (refused.status_code, refused.json()["code"]) == (503, "database_damaged")
        assert client.get("/v1/calibrators").status_code == 200
        assert client.get("/readyz").json()["database"].startswith("is damaged")
        assert client.get("/healthz").status_code == 200
    said = "".join(capfd.readouterr())
    assert "Traceback" not in said
