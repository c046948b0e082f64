"""Keys: made, listed, rotated, revoked, expired; on the command line and over HTTP."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import time

import pytest
from live_service import ROOT, in_process, running, wait_until

from service.core import keys
from service.core.access import Scope

TOKEN = re.compile(r"cal_[0-9a-f]{12}_[0-9a-f]{48}")


def command(*arguments: str, data_dir) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "service", *arguments, "--data-dir", str(data_dir)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_command_line_life_of_a_key(tmp_path):
    made = command("keys", "create", "--scopes", "fit,predict", "--name", "ci", data_dir=tmp_path)
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    assert TOKEN.fullmatch(token)
    listed = command("keys", "list", data_dir=tmp_path).stdout
    assert "ci" in listed
    assert "fit,predict" in listed
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
    assert "revoked" in command("keys", "revoke", id, data_dir=tmp_path).stdout


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
def test_command_line_mistakes_are_one_line(tmp_path, arguments):
    done = command("keys", *arguments, data_dir=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


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


def test_over_http_first_key_closes_the_door_and_rotation_keeps_it_open(local):
    made = local.post("/v1/keys", json={"name": "root", "scopes": ["admin"]})
    assert made.status_code == 201
    root = bearer(made.json()["token"])
    assert local.get("/v1/keys").status_code == 401
    child = local.post(
        "/v1/keys", json={"name": "job", "scopes": ["predict"], "days": 1}, headers=root
    ).json()
    assert local.get("/v1/keys", headers=bearer(child["token"])).status_code == 403
    rotated = local.post(f"/v1/keys/{child['key']['id']}/rotate", headers=root)
    assert rotated.status_code == 201
    for token in (child["token"], rotated.json()["token"]):
        assert local.get("/v1/calibrators", headers=bearer(token)).status_code == 200
    local.delete(f"/v1/keys/{child['key']['id']}", headers=root)
    ended = local.get("/v1/calibrators", headers=bearer(child["token"]))
    assert (ended.status_code, ended.json()["code"]) == (401, "key_has_ended")
    assert ended.headers["www-authenticate"] == "Bearer"


def test_expired_keys_end_and_use_is_noted(local):
    parts = local.app.state.parts
    with parts.database.write() as store:
        workspace = keys.workspace_named(store, "default").id
        short = keys.create(store, workspace, name="s", scopes=[Scope.PREDICT], days=1 / 86400)
        lasting = keys.create(store, workspace, name="l", scopes=[Scope.ADMIN])
    parts.keys.refresh()
    assert local.get("/v1/calibrators", headers=bearer(short.token)).status_code == 200
    time.sleep(1.1)
    assert local.get("/v1/calibrators", headers=bearer(short.token)).status_code == 401

    def last_used():
        listed = local.get("/v1/keys", headers=bearer(lasting.token)).json()
        return {one["name"]: one["last_used_at"] for one in listed}

    wait_until(lambda: all(last_used().values()), 5)


def test_key_made_by_another_process_is_known_within_two_seconds(tmp_path):
    with in_process(tmp_path) as local:
        token = command("keys", "create", "--scopes", "admin", data_dir=tmp_path).stdout.strip()
        wait_until(lambda: local.get("/v1/calibrators").status_code == 401, 2)
        assert local.get("/v1/calibrators", headers=bearer(token)).status_code == 200
