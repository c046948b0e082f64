"""Lists, aliases, keys and maps in memory are bounded, whatever one workspace does."""

from __future__ import annotations

import httpx
import pytest
from helpers.fit_fixtures import Place, add_version, principal
from helpers.live_service import Local
from helpers.registration import registration, temperature_registration

from calibrators.methods.temperature import TemperatureMap
from service.access import keys
from service.access.keys import KeyRing
from service.access.permissions import Scope
from service.access.repository import Keys
from service.errors import Conflict
from service.registry.aliases import service as aliases
from service.registry.aliases.repository import Aliases
from service.serving.map_cache import Maps, size_of
from service.storage.repository import PAGE_BYTES

pytestmark = pytest.mark.both_backends

# 16 kB of JSON, and about 350 kB of Python
INFO = {"x": [{} for _ in range(5400)]}


def test_pages_of_large_versions_are_shorter(place: Place) -> None:
    for _ in range(40):
        add_version(place, fit_info=INFO)
    with place.database.read() as store:
        shown = store.calibrators.affordable_versions(place.calibrator.id, 200, None)
        assert 0 < shown * 16_000 <= PAGE_BYTES
        assert shown < 40
        assert store.calibrators.affordable_versions(place.calibrator.id, 5, None) == 5


def test_a_page_has_at_least_one_item(place: Place) -> None:
    add_version(place, fit_info={"x": "y" * 2 * PAGE_BYTES})
    with place.database.read() as store:
        assert store.calibrators.affordable_versions(place.calibrator.id, 200, None) == 1


def test_large_versions_are_all_found_page_by_page(tenant: httpx.Client) -> None:
    for number in range(40):
        body = registration(TemperatureMap(k=3, temperature=1 + number / 100, fit_info=INFO))
        assert tenant.post("/v1/calibrators/a/versions", json=body).status_code == 201
    numbers, cursor = [], ""
    for _ in range(10):
        page = tenant.get(f"/v1/calibrators/a/versions?limit=200{cursor}").json()
        assert len(page["items"]) < 40
        numbers += [one["number"] for one in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert numbers == list(range(40, 0, -1))


def test_aliases_of_a_calibrator_are_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aliases, "MAX_ALIASES", 2)
    add_version(place)
    add_version(place)

    def move(alias: str, version: int) -> None:
        with place.database.write() as store:
            aliases.move(store, principal(place), "digits", alias, version=version)

    move("a", 1)
    move("b", 1)
    with pytest.raises(Conflict) as refused:
        move("c", 1)
    assert refused.value.code == "too_many_aliases"
    move("a", 2)


def test_only_aliases_in_use_are_looked_up(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    assert local.post("/v1/calibrators/a/versions", json=temperature_registration(2.0)).is_success
    for alias in ("used", "unused"):
        body = {"version": 1, "force": True, "reason": "test"}
        assert local.put(f"/v1/calibrators/a/aliases/{alias}", json=body).is_success
    assert local.get("/v1/calibrators/a@used/predict?logits=1,2,3").is_success
    asked: list[str] = []
    several = Aliases.several
    monkeypatch.setattr(
        Aliases,
        "several",
        lambda self, places: asked.extend(name for _, name in places) or several(self, places),
    )
    local.app.state.parts.maps.refresh()
    assert set(asked) == {"used"}


def test_maps_in_memory_hold_no_fit_info(local: Local) -> None:
    body = registration(TemperatureMap(k=3, temperature=2.0, fit_info=INFO))
    assert local.post("/v1/calibrators/a/versions", json=body).is_success
    assert local.get("/v1/calibrators/a@1/predict?logits=1,2,3").is_success
    maps: Maps = local.app.state.parts.maps
    (held,) = maps._versions.values()
    assert held.map.fit_info == {}
    assert size_of(held.map) < held.bytes < maps.bytes < 10_000
    assert size_of(TemperatureMap(k=3, temperature=2.0, fit_info=INFO)) > 300_000


def test_keys_of_a_workspace_are_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MAX_KEYS", 2)

    def create() -> str:
        with place.database.write() as store:
            return keys.create(store, place.workspace, name="k", scopes=[Scope.ADMIN]).key.id

    made = [create(), create()]
    with pytest.raises(Conflict) as refused:
        create()
    assert refused.value.code == "too_many_keys"
    for _ in range(4):
        with place.database.write() as store:
            keys.revoke(store, place.workspace, made.pop(0))
        made.append(create())
    with place.database.read() as store:
        found = store.keys.page(place.workspace, 100, None)
        assert {key.id for key in store.keys.live(place.workspace)} == set(made)
    assert len(found) == 2 + 2  # as many that have ended as may be valid


def test_only_keys_of_workspaces_that_changed_are_read(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[set[str]] = []
    of_workspaces = Keys.of_workspaces
    monkeypatch.setattr(
        Keys, "of_workspaces", lambda self, ids: read.append(set(ids)) or of_workspaces(self, ids)
    )
    ring = KeyRing(place.database)
    with place.database.write() as store:
        other = keys.workspace_named(store, "other", make=True).id
        first = keys.create(store, place.workspace, name="a", scopes=[Scope.ADMIN])
        second = keys.create(store, other, name="b", scopes=[Scope.FIT])
    ring.refresh()
    ring.refresh()
    assert read == [{place.workspace, other}]
    assert ring.authenticate(second.token).workspace == other
    with place.database.write() as store:
        keys.revoke(store, other, second.key.id)
    ring.refresh()
    assert read[1:] == [{other}]
    assert ring.authenticate(first.token).workspace == place.workspace
    with pytest.raises(Exception, match="was revoked"):
        ring.authenticate(second.token)
