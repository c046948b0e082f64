"""Keys: made, listed, rotated, revoked, expired, and seen by all who check them."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from backends import environment
from live_service import ROOT, by_the_clock, in_process, wait_until

from service.core import keys
from service.core.access import Scope


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


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


@by_the_clock
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


def test_key_made_by_another_process_is_known_within_two_seconds(backend, tmp_path):
    settings = backend.settings(tmp_path)
    command = [sys.executable, "-m", "service", "keys", "create", "--scopes", "admin"]
    with in_process(**settings) as local:
        made = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **environment(settings)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        wait_until(lambda: local.get("/v1/calibrators").status_code == 401, 2)
        token = made.stdout.strip()
        assert local.get("/v1/calibrators", headers=bearer(token)).status_code == 200
