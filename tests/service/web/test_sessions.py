"""Sessions: whose rights a cookie carries, for how long, and which pages may use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from helpers.dashboard_pages import HTML, csrf_of, make_key, sign_in
from helpers.live_service import Local, in_process
from sqlalchemy import func, select, update

from service.access import keys
from service.access.permissions import Scope
from service.storage.tables import web_sessions
from service.worker.housekeeping import Housekeeping, WorkerPace

CROSS_SITE = {"Sec-Fetch-Site": "cross-site"}
NAVIGATION = {**HTML, **CROSS_SITE, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
KEY = {"name": "another", "scopes": ["predict"]}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Run a service with keys."""
    with in_process(tmp_path_factory.mktemp("sessions")) as made:
        make_key(made, Scope.ADMIN, name="first")
        yield made


@pytest.fixture
def browser(service: Local) -> Iterator[Local]:
    """Return a browser that is not signed in."""
    with Local(base_url=service.base_url, timeout=60) as made:
        made.app = service.app
        yield made


@pytest.fixture
def admin(browser: Local) -> Local:
    """Return a browser with a session of an admin key."""
    assert sign_in(browser, make_key(browser, Scope.ADMIN, name="admin")).status_code == 303
    return browser


def own(client: Local) -> str:
    return str(client.base_url).rstrip("/")


def test_a_key_starts_a_session_that_pages_and_the_api_accept(browser: Local) -> None:
    assert browser.get("/v1/runs").status_code == 401
    answer = sign_in(browser, make_key(browser, Scope.FIT, name="ann"))
    assert (answer.status_code, answer.headers["location"]) == (303, "./")
    cookie = answer.headers["set-cookie"].lower().split("; ")
    assert {"httponly", "samesite=lax", "path=/", "max-age=43200"} <= set(cookie)
    assert "secure" not in cookie
    page = browser.get("/", headers=HTML)
    assert page.status_code == 200
    assert "ann (key " in page.text
    assert browser.get("/v1/runs").status_code == 200
    assert browser.get("/v1/keys").json()["code"] == "missing_scope"
    assert browser.get("/keys", headers=HTML).status_code == 403


def test_the_database_has_no_token(admin: Local) -> None:
    with admin.app.state.parts.database.read() as store:
        stored = set(store.session.scalars(select(web_sessions.c.token_sha256)))
    assert stored
    assert admin.cookies["calibrd_session"] not in stored


@pytest.mark.parametrize("key", ["cal_wrong", f"cal_{'0' * 12}_{'0' * 48}", "<b>x</b>", "ключ"])
def test_a_wrong_key_starts_no_session(browser: Local, key: str) -> None:
    answer = sign_in(browser, key)
    assert answer.status_code == 401
    assert "rejected this key" in answer.text
    assert key not in answer.text
    assert "set-cookie" not in answer.headers


def test_the_cookie_goes_by_https_alone_if_the_reader_came_by_it(browser: Local) -> None:
    token = make_key(browser, Scope.FIT)
    answer = sign_in(browser, token, **{"X-Forwarded-Proto": "https"})
    assert "; secure" in answer.headers["set-cookie"].lower()


def test_signing_out_ends_the_session_for_whoever_has_its_cookie(admin: Local) -> None:
    kept = {"Cookie": f"calibrd_session={admin.cookies['calibrd_session']}"}
    answer = admin.post("/sign-out", data={"csrf": csrf_of(admin)}, headers=HTML)
    assert (answer.status_code, answer.headers["location"]) == (303, "./sign-in")
    assert "calibrd_session" not in admin.cookies
    assert admin.get("/v1/runs", headers=kept).status_code == 401


def test_signing_in_again_ends_the_session_before(admin: Local) -> None:
    kept = {"Cookie": f"calibrd_session={admin.cookies['calibrd_session']}"}
    assert sign_in(admin, make_key(admin, Scope.FIT)).status_code == 303
    admin.cookies.clear()
    assert admin.get("/v1/runs", headers=kept).status_code == 401


def test_forms_are_small(browser: Local) -> None:
    answer = browser.post("/sign-in", data={"key": "x" * 70_000}, headers=HTML)
    assert answer.json()["code"] == "body_too_large"


def test_a_session_ends_with_its_key(browser: Local) -> None:
    token = make_key(browser, Scope.FIT)
    sign_in(browser, token)
    assert browser.get("/v1/runs").status_code == 200
    parts = browser.app.state.parts
    with parts.database.write() as store:
        workspace = keys.workspace_named(store, keys.DEFAULT_WORKSPACE).id
        keys.revoke(store, workspace, parts.keys.key_of(token))
    parts.keys.refresh()
    assert browser.get("/v1/runs").json()["code"] == "key_has_ended"
    assert browser.get("/", headers=HTML).status_code == 303


def test_a_session_expires_and_is_cleared_away(admin: Local, tmp_path: Path) -> None:
    parts = admin.app.state.parts
    assert admin.get("/v1/runs").status_code == 200
    with parts.database.write() as store:
        store.session.execute(update(web_sessions).values(expires_at=1.0))
    assert admin.get("/v1/runs").status_code == 401
    housekeeping = Housekeeping(
        parts.database,
        parts.blobs,
        parts.settings,
        WorkerPace(),
        worker="tidy",
        queues=[],
        device="cpu",
        current_fits=set,
    )
    housekeeping.keep_house()
    with parts.database.read() as store:
        assert store.session.scalar(select(func.count()).select_from(web_sessions)) == 0


def test_a_key_in_the_header_wins(admin: Local) -> None:
    wrong = {"Authorization": "Bearer cal_wrong"}
    assert admin.get("/v1/runs", headers=wrong).status_code == 401
    assert admin.get("/", headers={**HTML, **wrong}).status_code == 401
    reader = {"Authorization": f"Bearer {make_key(admin, Scope.PREDICT)}"}
    assert admin.get("/v1/keys", headers=reader).status_code == 403
    writer = {"Authorization": f"Bearer {make_key(admin, Scope.ADMIN)}"}
    assert admin.post("/v1/keys", json=KEY, headers=writer).status_code == 201  # without a token


def test_requests_that_change_something_need_the_session_token(admin: Local) -> None:
    csrf, other = csrf_of(admin), "0" * 64
    assert admin.post("/v1/keys", json=KEY).json()["code"] == "foreign_origin"
    for wrong in (other, "", "ü", csrf[:-1]):
        sent = {"X-CSRF-Token": wrong.encode()}
        assert admin.post("/v1/keys", json=KEY, headers=sent).status_code == 403
        assert admin.post("/keys", data={"csrf": wrong, "name": "x"}).status_code == 403
    assert admin.post("/v1/keys", json=KEY, headers={"X-CSRF-Token": csrf}).status_code == 201
    form = {"csrf": csrf, "name": "by form", "scope": "fit"}
    assert admin.post("/keys", data=form).status_code == 201
    # a right field does not make up for a wrong header, nor does one in the address
    assert admin.post("/keys", data=form, headers={"X-CSRF-Token": other}).status_code == 403
    assert admin.post(f"/keys?csrf={csrf}", data={"name": "x"}).status_code == 403
    assert admin.delete("/v1/keys/0", headers={}).status_code == 403


def test_every_form_needs_the_token(admin: Local) -> None:
    paths = ["/sign-out", "/sample", "/jobs/x/cancel", "/keys", "/keys/x/revoke", "/keys/x/rotate"]
    for path in paths:
        answer = admin.post(path, headers=HTML)
        assert answer.status_code == 403, path
        assert "reload the page" in answer.text
    assert admin.get("/v1/runs").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        CROSS_SITE,
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:1"},
        {**CROSS_SITE, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    ],
)
def test_pages_of_other_sites_cannot_use_a_session(admin: Local, headers: dict[str, str]) -> None:
    for path in ("/v1/runs", "/", "/jobs"):
        assert admin.get(path, headers={**HTML, **headers}).json()["code"] == "foreign_origin"
    sent = {**headers, "X-CSRF-Token": csrf_of(admin)}
    assert admin.post("/v1/keys", json=KEY, headers=sent).status_code == 403
    token = make_key(admin, Scope.FIT)
    assert sign_in(admin, token, **headers).status_code == 403  # nor can it begin a session


def test_a_link_from_another_site_opens_a_page_without_side_effects(admin: Local) -> None:
    assert admin.get("/jobs", headers=NAVIGATION).status_code == 200
    assert admin.get("/v1/runs", headers=NAVIGATION).status_code == 403
    data = {"csrf": csrf_of(admin)}
    assert admin.post("/sample", data=data, headers=NAVIGATION).status_code == 403


def test_its_own_pages_can(admin: Local) -> None:
    headers = {"Sec-Fetch-Site": "same-origin", "Origin": own(admin)}
    sent = {**headers, "X-CSRF-Token": csrf_of(admin)}
    assert admin.get("/v1/runs", headers=headers).status_code == 200
    assert admin.post("/v1/keys", json=KEY, headers=sent).status_code == 201


@pytest.mark.parametrize("path", ["/", "/jobs", "/jobs?cursor=a%26b", "/keys", "/runs/a%20b"])
def test_signing_in_is_required_and_returns_to_the_page(browser: Local, path: str) -> None:
    answer = browser.get(path, headers=HTML)
    assert answer.status_code == 303
    form = answer.next_request
    assert form is not None
    assert form.url.path == "/sign-in"
    (wanted,) = parse_qs(urlsplit(str(form.url)).query)["next"]
    assert wanted == path
    assert 'type="password"' in browser.send(form).text
    data = {"key": make_key(browser, Scope.ADMIN), "next": wanted}
    answer = browser.post("/sign-in", data=data, headers=HTML)
    assert answer.next_request is not None
    assert str(answer.next_request.url) == own(browser) + path


@pytest.mark.parametrize(
    "next",
    [
        "//elsewhere.example/",
        "https://elsewhere.example/",
        "/\\elsewhere.example",
        "\\\\elsewhere.example",
        "/\t/elsewhere.example",
        "javascript:alert(1)",
        "elsewhere",
        "",
    ],
)
def test_signing_in_leads_nowhere_else(browser: Local, next: str) -> None:
    data = {"key": make_key(browser, Scope.FIT), "next": next}
    assert browser.post("/sign-in", data=data, headers=HTML).headers["location"] == "./"


def test_cookies_without_a_session(browser: Local) -> None:
    for value in ("x", "x" * 3000, '"quoted"', "a=b; calibrd_session=", "é"):
        sent = {"Cookie": f"other=1; calibrd_session={value}".encode("latin-1")}
        assert browser.get("/v1/runs", headers=sent).status_code == 401


def test_without_keys_nobody_signs_in(local: Local) -> None:
    answer = local.get("/sign-in?next=/jobs", headers=HTML)
    assert (answer.status_code, answer.headers["location"]) == (303, "./jobs")
    page = local.get("/", headers={**HTML, "Cookie": "calibrd_session=of-another-service"})
    assert page.status_code == 200
    assert "Sign out" not in page.text
    origin = {**HTML, "Origin": own(local), "Sec-Fetch-Site": "same-origin"}
    assert local.post("/sample", headers=origin).status_code == 303
    assert local.post("/sample", headers={**HTML, "Origin": "null"}).status_code == 403
    assert local.get("/", headers={**HTML, "Host": "elsewhere.example"}).status_code == 403


def test_a_form_of_an_ended_session_leads_to_sign_in_and_back(browser: Local) -> None:
    here = f"{own(browser)}/calibrators/fashion/promote?version=2"
    headers = {**HTML, "Referer": here}
    answer = browser.post("/calibrators/fashion/promote", data={"version": "2"}, headers=headers)
    assert answer.status_code == 303
    asked = parse_qs(urlsplit(answer.headers["location"]).query)
    assert asked == {"ended": ["1"], "next": ["/calibrators/fashion/promote?version=2"]}
    page = browser.get("/sign-in", params={name: one[0] for name, one in asked.items()})
    assert "Your session has ended. Nothing was changed" in page.text
    foreign = {**HTML, "Referer": "https://elsewhere.example/keys"}
    answer = browser.post("/calibrators/fashion/promote", headers=foreign)
    assert answer.headers["location"].endswith("?ended=1&next=/")


def test_unknown_paths_show_a_page_to_people(admin: Local) -> None:
    for path, status in (("/nope", 404), ("/sign-out", 405)):
        page = admin.get(path, headers=HTML)
        assert (page.status_code, page.headers["content-type"][:9]) == (status, "text/html")
        assert admin.get(path).headers["content-type"] == "application/problem+json"


def test_a_form_that_was_refused_leads_back_to_its_page(admin: Local) -> None:
    headers = {**HTML, "Referer": f"{own(admin)}/keys"}
    answer = admin.post("/keys", data={"csrf": csrf_of(admin), "name": "x"}, headers=headers)
    assert answer.status_code == 422
    assert '<a href="/keys">Back' in answer.text
