"""A workspace that loads many maps does not evict those of others."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.dashboard_pages import make_key
from helpers.live_service import Local, in_process, wait_until
from helpers.registration import temperature_registration
from sqlalchemy import delete, update

from service.access.permissions import Scope
from service.serving.map_cache import (
    MAP_OVERHEAD,
    PLACE_OVERHEAD,
    ROUND_SECONDS,
    CacheKey,
    Maps,
)
from service.storage.database import Database
from service.storage.records import Alias
from service.storage.tables import aliases
from service.storage.tables import keys as key_rows


def test_the_workspace_that_takes_most_loses_its_oldest_map(tmp_path: Path) -> None:
    room = 6 * (MAP_OVERHEAD + PLACE_OVERHEAD + 1500)
    with in_process(tmp_path, map_cache_bytes=room) as service:
        keys = {name: make_key(service, Scope.ADMIN, workspace=name) for name in ("a", "b")}

        def call(name: str, method: str, path: str, **sent: Any) -> Any:
            headers = {"Authorization": f"Bearer {keys[name]}"}
            return service.request(method, path, headers=headers, **sent)

        for name, count in (("b", 1), ("a", 20)):
            for n in range(count):
                body = temperature_registration(1.5, k=2)
                made = call(name, "POST", f"/v1/calibrators/m{n}/versions", json=body)
                assert made.status_code == 201, made.text
                path = f"/v1/calibrators/m{n}@1/predict?logits=1,2"
                assert call(name, "GET", path).status_code == 200
        assert in_memory(service, "b") == ["m0"]
        left = in_memory(service, "a")
        assert 0 < len(left) < 20
        assert "m19" in left


def in_memory(service: Local, workspace: str) -> list[str]:
    """Return the maps of a workspace that are in memory."""
    parts = service.app.state.parts
    with parts.database.read() as store:
        id = store.keys.workspace_named(workspace).id
    return [place.name for place in parts.maps._served if place.workspace == id]


def test_aliases_that_moved_elsewhere_are_followed_in_turns_of_workspaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_process(tmp_path, refresh_seconds=60) as service:
        keys = {name: make_key(service, Scope.ADMIN, workspace=name) for name in ("a", "b")}

        def call(name: str, method: str, path: str, **sent: Any) -> None:
            headers = {"Authorization": f"Bearer {keys[name]}"}
            answer = service.request(method, path, headers=headers, **sent)
            assert answer.is_success, answer.text

        for name, count in (("a", 12), ("b", 1)):
            for n in range(count):
                for temperature in (1.5, 2.5):
                    body = temperature_registration(temperature, k=2)
                    call(name, "POST", f"/v1/calibrators/m{n}/versions", json=body)
                move = {"version": 1, "reason": "first", "force": True}
                call(name, "PUT", f"/v1/calibrators/m{n}/aliases/p", json=move)
                call(name, "GET", f"/v1/calibrators/m{n}@p/predict?logits=1,2")
        elsewhere = Database(str(service.app.state.parts.settings.database))
        with elsewhere.write() as store:
            store.session.execute(
                update(aliases).values(version=2, revision=aliases.c.revision + 1)
            )
        elsewhere.close()
        followed: list[str] = []
        follow = Maps._follow

        def slow_follow(self: Maps, place: CacheKey, alias: Alias) -> None:
            time.sleep(1.5 * ROUND_SECONDS)
            followed.append(place.workspace)
            follow(self, place, alias)

        monkeypatch.setattr(Maps, "_follow", slow_follow)
        service.app.state.parts.maps.refresh()
        with service.app.state.parts.database.read() as store:
            other = store.keys.workspace_named("b").id
    assert len(followed) == 13
    assert followed.index(other) <= 1


def test_a_revoked_key_does_not_wait_for_maps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, began = threading.Event(), threading.Event()

    def stuck(_: Maps) -> None:
        began.set()
        release.wait(60)

    with in_process(tmp_path, refresh_seconds=0.2) as service:
        monkeypatch.setattr(Maps, "refresh", stuck)
        token = make_key(service, Scope.PREDICT)
        headers = {"Authorization": f"Bearer {token}"}
        assert began.wait(20)
        try:
            wait_until(lambda: service.get("/v1/calibrators", headers=headers).status_code == 200)
            elsewhere = Database(str(service.app.state.parts.settings.database))
            with elsewhere.write() as store:
                store.session.execute(delete(key_rows).where(key_rows.c.name == "somebody"))
            elsewhere.close()
            wait_until(lambda: service.get("/v1/calibrators", headers=headers).status_code == 401)
        finally:
            release.set()
