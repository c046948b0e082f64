"""The API reference in a real Chromium: it is complete and safe, and its operations run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.browser import Tab, browser
from helpers.live_service import Running, running
from playwright.sync_api import Locator, expect

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
# markup of Swagger UI that its users cannot change
NOT_OURS = ("nested-interactive", "select-name", "scrollable-region-focusable")


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    """Run a service with one key; yield it with the key."""
    data_dir = tmp_path_factory.mktemp("reference") / "data"
    with running(data_dir, "--workers", "0") as started:
        with started.client() as client:
            body = {"name": "ann", "scopes": ["admin"]}
            token = client.post("/v1/keys", json=body).json()["token"]
        yield started, token


@pytest.fixture
def service(locked: tuple[Running, str], tab: Tab) -> Iterator[str]:
    """Yield its address; afterwards check for console errors and requests to other hosts."""
    tab.problems.clear()
    tab.page.context.clear_cookies()
    yield locked[0].url
    assert not tab.problems
    assert all(one.startswith((locked[0].url, "data:")) for one in tab.asked)


def open_reference(tab: Tab, service: str, **look: Any) -> None:
    tab.open(f"{service}/docs", **look)
    expect(tab.page.locator(".opblock").first).to_be_visible()


def operation(tab: Tab, name: str) -> Locator:
    """Return an operation with its section opened."""
    found = tab.page.locator(f".opblock[id$='-{name}']")
    found.locator(".opblock-summary-control").click()
    expect(found.locator(".opblock-body")).to_be_visible()
    return found


def run(found: Locator) -> str:
    """Run an opened operation; return its status."""
    found.get_by_role("button", name="Try it out").click()
    found.get_by_role("button", name="Execute").click()
    status = found.locator(".live-responses-table .response-col_status").nth(1)
    expect(status).to_contain_text("2")
    return status.inner_text().split()[0]


def forgive(tab: Tab, service: str, words: str) -> None:
    """Leave the page and drop its expected console errors."""
    tab.open(f"{service}/sign-in")
    tab.problems = [one for one in tab.problems if words not in one]


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_it_fits_the_window_and_is_accessible(
    tab: Tab, service: str, width: int, dark: bool
) -> None:
    open_reference(tab, service, width=width, dark=dark)
    for name in ("create_dataset", "put_part", "predict", "annotate_version"):
        operation(tab, name)
    tab.check_width()
    tab.check_access(except_for=NOT_OURS)
    tab.keep_picture(f"reference-{width}-{'dark' if dark else 'light'}")


def test_every_operation_is_listed_with_its_summary(tab: Tab, service: str) -> None:
    open_reference(tab, service)
    document = tab.page.request.get(f"{service}/openapi.json").json()
    described = {
        (method.upper(), path, one["summary"])
        for path, item in document["paths"].items()
        for method, one in item.items()
        if method != "parameters"
    }
    shown = {
        (
            one.locator(".opblock-summary-method").inner_text(),
            one.locator(".opblock-summary-path").get_attribute("data-path") or "",
            one.locator(".opblock-summary-description").inner_text(),
        )
        for one in tab.page.locator(".opblock").all()
    }
    assert shown == described


def test_examples_schemas_and_code_are_shown(tab: Tab, service: str) -> None:
    open_reference(tab, service)
    found = operation(tab, "create_dataset")
    expect(found.locator(".opblock-description code").first).to_have_text("logits")
    expect(found.locator(".body-param__example")).to_contain_text("2.1")
    expect(found.locator("[data-code='201'] .example").first).to_contain_text("ds_")


def test_an_operation_without_a_key_runs_and_so_does_its_curl_line(tab: Tab, service: str) -> None:
    open_reference(tab, service)
    found = operation(tab, "healthz")
    assert run(found) == "200"
    line = found.locator(".curl code, .curl-command .curl").first.inner_text()
    done = subprocess.run(
        ["bash", "-euc", line], capture_output=True, text=True, timeout=30, check=True
    )
    assert json.loads(done.stdout) == {"status": "ok"}


def test_an_operation_runs_with_the_key_given_on_the_page(
    tab: Tab, service: str, locked: tuple[Running, str]
) -> None:
    open_reference(tab, service)
    tab.page.locator(".btn.authorize").click()
    dialog = tab.page.locator(".dialog-ux")
    dialog.locator("input").fill(locked[1])
    dialog.get_by_role("button", name="Apply credentials").click()
    dialog.get_by_role("button", name="Close").last.click()
    assert run(operation(tab, "list_keys")) == "200"


def test_an_operation_that_changes_something_runs_in_a_session(
    tab: Tab, service: str, locked: tuple[Running, str]
) -> None:
    tab.open(f"{service}/sign-in?next=/docs")
    tab.page.get_by_label("API key").fill(locked[1])
    tab.press("Sign in")
    expect(tab.page.locator(".opblock").first).to_be_visible()
    found = operation(tab, "create_key")
    assert run(found) == "201"
    expect(found.locator(".live-responses-table .microlight").first).to_contain_text("cal_")
    assert "X-CSRF-Token" not in found.locator(".responses-inner").inner_text()


def test_documents_are_only_text_and_may_hold_themselves(tab: Tab, service: str) -> None:
    node = {"properties": {"next": {"$ref": "#/components/schemas/Node"}, HOSTILE: {}}}
    shown = {"summary": HOSTILE, "description": HOSTILE, "tags": [HOSTILE]}
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Node"}}}
    answer = {"200": {"description": HOSTILE, "content": content}}
    document = {
        "openapi": "3.1.0",
        "info": {"title": HOSTILE, "version": "1"},
        "tags": [{"name": HOSTILE, "description": HOSTILE}],
        "paths": {"/things": {"get": {**shown, "operationId": "things", "responses": answer}}},
        "components": {"schemas": {"Node": {"type": "object", "description": HOSTILE, **node}}},
    }
    dialogs: list[str] = []
    tab.page.on("dialog", lambda one: (dialogs.append(one.message), one.dismiss()))
    tab.page.route("**/openapi.json", lambda route: route.fulfill(json=document))
    try:
        open_reference(tab, service)
        found = operation(tab, "things")
        expect(found).to_contain_text("<script>")
        assert tab.page.locator("#reference :is(script, [onerror])").count() == 0
        assert not dialogs
    finally:
        tab.page.unroute("**/openapi.json")
    # what Swagger UI removes is parsed before, and refused by the policy even there
    forgive(tab, service, "Content Security Policy")


def test_a_missing_document_is_reported(tab: Tab, service: str) -> None:
    tab.page.route("**/openapi.json", lambda route: route.fulfill(status=503))
    try:
        tab.open(f"{service}/docs")
        expect(tab.page.get_by_role("alert")).to_contain_text("could not be loaded")
    finally:
        tab.page.unroute("**/openapi.json")
    forgive(tab, service, "503")
