"""Deny by default: every route of the app, requested without a key and with every kind of key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from helpers.live_service import Local, in_process
from helpers.route_table import NEEDS, PLACES, UNDOCUMENTED, Call, calls_of

from service.access import keys
from service.access.permissions import Scope
from service.http.middleware.auth import PUBLIC, is_public
from service.http.middleware.request_limits import _uses_threads

FOREIGN = [
    {"Host": "calibrd.example"},
    {"Host": "calibrd.example:8000"},
    {"Host": "127.0.0.1.example"},
    {"Origin": "https://calibrd.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


@dataclass(frozen=True)
class Locked:
    """A service with keys: a token for every scope, and headers that are not valid keys."""

    client: Local
    tokens: dict[Scope, str]
    invalid: dict[str, dict[str, str]]

    @property
    def calls(self) -> list[Call]:
        return list(calls_of(self.client.app))

    def ask(self, call: Call, headers: dict[str, str]) -> httpx.Response:
        return self.client.request(call.method, call.url(**PLACES), headers=headers)


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    with in_process(tmp_path_factory.mktemp("locked")) as client:
        parts = client.app.state.parts
        with parts.database.write() as store:
            workspace = keys.workspace_named(store, keys.DEFAULT_WORKSPACE).id
            tokens = {
                scope: keys.create(store, workspace, name=scope, scopes=[scope]).token
                for scope in reversed(Scope)  # the first key must be an admin's
            }
            revoked = keys.create(store, workspace, name="revoked", scopes=[Scope.ADMIN])
            keys.revoke(store, workspace, revoked.key.id)
            expired = keys.create(store, workspace, name="old", scopes=[Scope.ADMIN], days=1e-9)
        parts.keys.refresh()
        admin = tokens[Scope.ADMIN]
        invalid = {
            "none": {},
            "empty": {"Authorization": ""},
            "another scheme": {"Authorization": "Basic YWRtaW46YWRtaW4="},
            "nonsense": {"Authorization": "Bearer nonsense"},
            "cut short": bearer(admin[:-1]),
            "unknown": bearer(f"cal_{'0' * 12}_{'0' * 48}"),
            "wrong secret": bearer(admin[:17] + "0" * 48),
            "revoked": bearer(revoked.token),
            "expired": bearer(expired.token),
        }
        yield Locked(client, tokens, invalid)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Return a service without keys that never gets one."""
    with in_process(tmp_path_factory.mktemp("opened")) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def check_refusal(call: Call, answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, (str(call), answer.status_code, answer.text)
    if call.method == "HEAD":
        assert not answer.content
    elif call.path.startswith("/v2"):
        assert answer.headers["content-type"] == "application/json"
        assert list(answer.json()) == ["error"]
    else:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"]
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"


def test_every_route_is_in_the_table_and_in_the_document(locked: Locked) -> None:
    documented = {
        f"{method.upper()} {path}"
        for path, item in locked.client.get("/openapi.json").json()["paths"].items()
        for method in item
        if method != "parameters"
    }
    explicit = {str(call) for call in locked.calls if call.method != "HEAD"}
    assert explicit | {"HEAD /v1/datasets/{id}"} == set(NEEDS)
    assert documented == {one for one in NEEDS if one.split()[1] not in UNDOCUMENTED}


def test_public_routes_are_those_that_the_guard_names(locked: Locked) -> None:
    assert {call.path for call in locked.calls if call.need == "public"} == PUBLIC | {
        "/static/{file}",
        "/help/{file}",
    }
    for call in locked.calls:
        assert is_public(call.path) == (call.need == "public"), str(call)
        if call.need == "public":
            allowed = (200, 307, 503) if call.method != "POST" else (422,)  # an empty form
            if call.path.startswith("/help"):
                allowed = (303, 404)  # no site was built here
            assert locked.ask(call, {}).status_code in allowed, str(call)


@pytest.mark.parametrize("number", ["9" * 30, "-" + "9" * 30, "0", "-1"])
def test_numbers_beyond_those_of_the_database_are_refused(locked: Locked, number: str) -> None:
    numbers = dict.fromkeys(("number", "version", "step"), number)
    admin = bearer(locked.tokens[Scope.ADMIN])
    calls = [one for one in locked.calls if any(f"{{{name}}}" in one.path for name in numbers)]
    assert len(calls) > 10
    for call in calls:
        answer = locked.client.request(call.method, call.url(**PLACES | numbers), headers=admin)
        assert 400 <= answer.status_code < 500, (str(call), answer.text)


def test_no_route_responds_without_a_valid_key(locked: Locked) -> None:
    tried = 0
    for call in locked.calls:
        for headers in locked.invalid.values():
            if call.need != "public":
                check_refusal(call, locked.ask(call, headers), 401)
                tried += 1
    assert tried > 40 * len(locked.invalid)


@pytest.mark.parametrize("scope", Scope)
def test_every_scope_on_every_route(locked: Locked, scope: Scope) -> None:
    for call in locked.calls:
        answer = locked.ask(call, bearer(locked.tokens[scope]))
        if scope is Scope.ADMIN or call.need in ("public", "any", scope):
            assert answer.status_code not in (401, 403), (str(call), answer.text)
            assert answer.status_code < 500 or call.path in ("/readyz", "/v2/health/ready")
        else:
            check_refusal(call, answer, 403)


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v1/nothing",
        "/v3",
        "//v1/methods",
        "/V1/methods",
        "/healthz/",
        "/docs/x",
    ],
)
def test_paths_without_a_route_are_refused_too(locked: Locked, path: str) -> None:
    check_refusal(Call("GET", path), locked.client.get(path), 401)
    check_refusal(Call("OPTIONS", path), locked.client.options(path), 401)


def test_without_keys_everything_on_loopback_is_allowed(opened: Local) -> None:
    for call in calls_of(opened.app):
        answer = opened.request(call.method, call.url(**PLACES))
        assert answer.status_code not in (401, 403), (str(call), answer.text)


@pytest.mark.parametrize("headers", FOREIGN)
def test_without_keys_no_other_site_can_reach_a_route(
    opened: Local, headers: dict[str, str]
) -> None:
    for call in calls_of(opened.app):
        if call.need != "public":
            answer = opened.request(call.method, call.url(**PLACES), headers=headers)
            check_refusal(call, answer, 403)


# they respond from memory or receive long bodies; all other routes share the framework's threads
OWN_EXECUTORS = {
    "GET /v1/calibrators/{name}@{ref}/predict",
    "HEAD /v1/calibrators/{name}@{ref}/predict",
    "POST /v1/calibrators/{name}@{ref}/predict",
    "POST /v2/models/{name}/infer",
    "POST /v2/models/{name}/versions/{version}/infer",
    "POST /v1/datasets",
    "PUT /v1/datasets/{id}/parts/{number}",
    "POST /v1/calibrators/{name}/fits",
    "POST /v1/runs/{run}/steps/{step}/stats",
}


@pytest.mark.parametrize("word", ["predict", "infer", "fits", "stats", "datasets", "1"])
def test_no_name_lets_a_call_escape_the_limit_of_threads(opened: Local, word: str) -> None:
    escaped = set()
    for call in calls_of(opened.app):
        names = dict.fromkeys(call.parameters, word)
        path = call.url(**names | {"number": 1} if "number" in names else names)
        scope = {"method": call.method, "path": path, "principal": "somebody"}
        if not _uses_threads(scope):
            escaped.add(str(call))
    assert escaped <= OWN_EXECUTORS
    assert "POST /v1/calibrators/{name}/fits" in escaped


def test_without_keys_its_own_pages_can(opened: Local) -> None:
    own = {"Origin": str(opened.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    assert opened.get("/v1/methods", headers=own).status_code == 200
    assert opened.get("/v1/methods", headers={"Host": "localhost"}).status_code == 200
    assert opened.get("/v1/methods", headers={"Host": "[::1]:8000"}).status_code == 200


def test_the_first_key_ends_open_access_for_good(local: Local) -> None:
    assert local.get("/v1/methods").status_code == 200
    made = local.post("/v1/keys", json={"name": "first", "scopes": ["admin"]}).json()
    assert local.get("/v1/methods").json()["code"] == "key_required"
    assert local.get("/v1/methods", headers=bearer(made["token"])).status_code == 200
    parts = local.app.state.parts
    with parts.database.write() as store:
        workspace = keys.workspace_named(store, keys.DEFAULT_WORKSPACE).id
        keys.revoke(store, workspace, made["key"]["id"], even_last=True)
    parts.keys.refresh()
    assert local.get("/v1/methods", headers=bearer(made["token"])).json()["code"] == "key_has_ended"
    assert local.get("/v1/methods").status_code == 401


def test_a_service_that_others_can_reach_needs_a_key_from_the_start(tmp_path) -> None:
    # it listens on loopback here; the setting alone decides
    with in_process(tmp_path, host="0.0.0.0") as client:  # noqa: S104
        for call in calls_of(client.app):
            if call.need != "public":
                check_refusal(call, client.request(call.method, call.url(**PLACES)), 401)
