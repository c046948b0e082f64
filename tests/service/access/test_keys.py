"""Keys: created, listed, rotated, revoked and expired, in all processes that check them."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from helpers.backends import environment
from helpers.live_service import ROOT, by_the_clock, in_process, wait_until

from service.access import keys
from service.access.permissions import Scope
from service.errors import Conflict

pytestmark = pytest.mark.both_backends


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_the_first_key_ends_open_access_and_rotation_keeps_the_old_key_valid(local):
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
        lasting = keys.create(store, workspace, name="l", scopes=[Scope.ADMIN])
        short = keys.create(store, workspace, name="s", scopes=[Scope.PREDICT], days=1 / 86400)
    parts.keys.refresh()
    assert local.get("/v1/calibrators", headers=bearer(short.token)).status_code == 200
    time.sleep(1.1)
    assert local.get("/v1/calibrators", headers=bearer(short.token)).status_code == 401

    def last_used():
        listed = local.get("/v1/keys", headers=bearer(lasting.token)).json()["items"]
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


def test_the_first_key_must_be_able_to_create_others(local):
    refused = local.post("/v1/keys", json={"name": "ci", "scopes": ["fit", "predict"]})
    assert refused.status_code == 409
    assert refused.json()["code"] == "first_key_needs_admin"
    assert local.get("/v1/keys").json()["items"] == []  # nobody is locked out
    root = local.post("/v1/keys", json={"name": "root", "scopes": ["admin"]})
    assert root.status_code == 201
    asked = {"json": {"name": "ci", "scopes": ["fit"]}, "headers": bearer(root.json()["token"])}
    assert local.post("/v1/keys", **asked).status_code == 201


def test_the_last_admin_key_stays(local):
    root = local.post("/v1/keys", json={"name": "root", "scopes": ["admin"]}).json()
    headers = bearer(root["token"])
    for body in (
        {"name": "ci", "scopes": ["fit"]},
        {"name": "ended", "scopes": ["admin"], "days": 1e-9},
    ):
        assert local.post("/v1/keys", json=body, headers=headers).status_code == 201
    place = f"/v1/keys/{root['key']['id']}"
    refused = local.delete(place, headers=headers)
    assert refused.status_code == 409
    assert refused.json()["code"] == "last_admin_key"
    assert local.get("/v1/keys", headers=headers).status_code == 200

    second = local.post(
        "/v1/keys", json={"name": "second", "scopes": ["admin"]}, headers=headers
    ).json()
    assert local.delete(place, headers=headers).status_code == 200
    assert local.delete(place, headers=bearer(second["token"])).status_code == 200  # once more
    place = f"/v1/keys/{second['key']['id']}"
    replaced = local.post(
        f"{place}/rotate", json={"grace_hours": 0}, headers=bearer(second["token"])
    )
    assert replaced.status_code == 201
    listed = local.get("/v1/keys", headers=bearer(replaced.json()["token"]))
    assert listed.status_code == 200


def test_each_workspace_keeps_an_admin(local):
    with local.app.state.parts.database.write() as store:
        ours, theirs = (
            keys.workspace_named(store, name, make=True).id for name in ("default", "other")
        )
        first = keys.create(store, ours, name="first", scopes=[Scope.ADMIN])
        keys.create(store, theirs, name="theirs", scopes=[Scope.ADMIN])
        with pytest.raises(Conflict, match="the last valid key with the admin scope"):
            keys.revoke(store, ours, first.key.id)
