"""Keys on the command line, and the access that they give."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.backends import add_database
from helpers.live_service import ROOT, running
from sqlalchemy import event, func, select
from sqlalchemy.orm import Session

from service.__main__ import main
from service.cli.arguments import run
from service.errors import NoSpace
from service.storage.tables import keys

TOKEN = re.compile(r"cal_[0-9a-f]{12}_[0-9a-f]{48}")


def command(*arguments: str, data_dir) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "service", *arguments, "--data-dir", str(data_dir)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_command_line_life_of_a_key(tmp_path):
    add_database(tmp_path)
    scopes = ("--scopes", "fit,predict", "--scopes", "admin")
    made = command("keys", "create", *scopes, "--name", "ci", data_dir=tmp_path)
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    assert TOKEN.fullmatch(token)
    listed = command("keys", "list", data_dir=tmp_path).stdout
    assert "ci" in listed
    assert "admin,fit,predict" in listed
    assert token not in listed
    id = token.split("_")[1]
    secret = token.split("_")[2]
    assert secret.encode() not in (tmp_path / "calibrd.db").read_bytes()
    rows = sqlite3.connect(tmp_path / "calibrd.db")
    (stored,) = rows.execute("SELECT secret_sha256 FROM keys").fetchone()
    rows.close()
    assert stored != secret
    rotated = command("keys", "rotate", id, data_dir=tmp_path)
    assert TOKEN.fullmatch(rotated.stdout.strip())
    revoked = command("keys", "revoke", id, data_dir=tmp_path)
    assert "revoked" in revoked.stdout
    assert "warning" not in revoked.stderr
    last = command("keys", "revoke", rotated.stdout.split("_")[1], data_dir=tmp_path)
    assert "revoked" in last.stdout
    assert "warning: this was the last key with the admin scope; create another: " in last.stderr
    assert "keys create --scopes admin" in last.stderr


def test_the_first_key_needs_admin(tmp_path):
    add_database(tmp_path)
    refused = command("keys", "create", data_dir=tmp_path)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert "the first key must have the admin scope" in refused.stderr
    assert "keys create --scopes admin --name first" in refused.stderr
    assert command("keys", "list", data_dir=tmp_path).stdout == ""
    assert command("keys", "create", "--scopes", "admin", data_dir=tmp_path).returncode == 0
    assert command("keys", "create", data_dir=tmp_path).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "--scopes", "everything"),
        ("revoke",),
        ("revoke", "nobody"),
        ("list", "--workspace", "elsewhere"),
        ("create", "--scopes", ""),
    ],
)
def test_command_line_mistakes_are_one_line(tmp_path, arguments, capsys):
    add_database(tmp_path)
    assert run(["keys", *arguments, "--data-dir", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def test_other_addresses_need_a_key_first(tmp_path):
    refused = command("serve", "--host", "0.0.0.0", "--port", "0", data_dir=tmp_path)  # noqa: S104
    assert refused.returncode == 2
    assert "python -m service keys create" in refused.stderr
    token = command("keys", "create", "--scopes", "admin", data_dir=tmp_path).stdout.strip()
    with running(tmp_path, "--host", "0.0.0.0", "--workers", "0") as started:  # noqa: S104
        port = started.url.rpartition(":")[2]
        started.url = f"http://127.0.0.1:{port}"
        with started.client() as client:
            assert client.get("/v1/calibrators").status_code == 401
        with started.client(token) as client:
            assert client.get("/v1/calibrators").status_code == 200


def test_a_key_is_shown_only_once_it_is_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(session: Session) -> None:
        if session.scalar(select(func.count()).select_from(keys)) == 2:
            raise NoSpace("no_space", "the database disk is full")

    add_database(tmp_path)
    arguments = ["keys", "create", "--scopes", "admin", "--data-dir", str(tmp_path)]
    assert main(arguments) == 0
    assert TOKEN.search(capsys.readouterr().out)
    event.listen(Session, "before_commit", full)
    try:
        assert main(arguments) != 0
    finally:
        event.remove(Session, "before_commit", full)
    assert "cal_" not in capsys.readouterr().out


def test_a_wrong_data_directory_is_refused_and_not_created(tmp_path: Path) -> None:
    folder = tmp_path / "typo"
    for action in ("create", "list"):
        refused = command("keys", action, "--scopes", "admin", data_dir=folder)
        assert refused.returncode == 2
        assert f"there is no database at {folder}" in refused.stderr
        assert "python -m service migrate" in refused.stderr
        assert not folder.exists()
    assert command("migrate", data_dir=folder).returncode == 0
    assert command("keys", "create", "--scopes", "admin", data_dir=folder).returncode == 0
