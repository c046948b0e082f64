"""Who loads many maps drops none of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers.dashboard_pages import make_key
from helpers.live_service import Local, in_process
from helpers.registration import temperature_registration

from service.access.permissions import Scope
from service.serving.map_cache import MAP_OVERHEAD, PLACE_OVERHEAD


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
