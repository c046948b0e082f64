"""Pages of the dashboard in tests: their content, and browser sessions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any

import httpx
from sqlalchemy import event, select

from helpers.live_service import Local
from service.access import keys
from service.access.permissions import Scope
from service.fits.repository import Fits
from service.storage.records import FitStatus
from service.storage.tables import calibrators

MARKUP = "<img src=x onerror=alert(1)>'\"&amp;"
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FIT_FACTS: dict[str, Any] = {
    "order": {"methods": [{"method": "temperature", "params": {}}]},
    "dataset": "ds_0",
    "queue": "fit.cpu",
    "created_by": "somebody",
}


class Shell(HTMLParser):
    """The tags of a page, and its links and resources; inline scripts and styles are failures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.inline = ""
        self.words = ""
        self._tag = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        assert not [name for name in found if name.startswith("on") or name == "style"]
        self.tags.append(tag)
        self.words += " " if tag in ("td", "th") else ""
        self.ids |= {found["id"]} if "id" in found else set()
        self.links += [found[name] for name in ("href", "src", "action") if name in found]
        self._tag = tag

    def handle_data(self, data):
        self.words += data
        if self._tag in ("script", "style"):
            self.inline += data.strip()


def check_page(answer: httpx.Response) -> Shell:
    """Check a page under the strict policy, without inline scripts or styles; return it."""
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    sent = answer.headers["content-security-policy"]
    policy = dict(part.strip().split(" ", 1) for part in sent.split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    for one in ("script-src", "style-src", "connect-src", "form-action"):
        assert policy[one] == "'self'"
    assert "unsafe" not in sent
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["x-content-type-options"] == "nosniff"
    shell = Shell(answer.text)
    assert not shell.inline
    assert not {"iframe", "object", "embed", "img", "base"} & set(shell.tags)
    return shell


def make_key(
    client: Local,
    *scopes: Scope,
    name: str = "somebody",
    workspace: str = keys.DEFAULT_WORKSPACE,
    **facts: float,
) -> str:
    """Create a key and return its token."""
    parts = client.app.state.parts
    with parts.database.write() as store:
        workspace = keys.workspace_named(store, workspace, make=True).id
        if Scope.ADMIN not in scopes and store.keys.count() == 0:
            keys.create(store, workspace, name="root", scopes=[Scope.ADMIN])
        token = keys.create(store, workspace, name=name, scopes=list(scopes), **facts).token
    parts.keys.refresh()
    return token


def sign_in(client: Local, token: str, **headers: str) -> httpx.Response:
    """Submit the sign-in form like a browser; the client then holds the cookie."""
    return client.post("/sign-in", data={"key": token}, headers={**HTML, **headers})


def csrf_of(client: Local) -> str:
    """Return the token in the forms of the client's session."""
    found = re.search(
        r'name="csrf" value="([0-9a-f]{64})"', client.get("/about", headers=HTML).text
    )
    assert found
    return found[1]


def add_fit(client: Local, status: FitStatus = FitStatus.QUEUED, **facts: Any) -> str:
    """Add a fit, by default of the first calibrator; return its id."""
    with client.app.state.parts.database.write() as store:
        calibrator = store.session.execute(select(calibrators)).first()
        assert calibrator is not None
        given = {"calibrator_name": calibrator.name, **FIT_FACTS, **facts, "status": status}
        return Fits(store.session).add(calibrator.workspace, calibrator=calibrator.id, **given).id


@contextmanager
def signed_in(service: Local, *scopes: Scope, name: str = "somebody") -> Iterator[Local]:
    """Return a browser with a session of a new key."""
    with Local(base_url=service.base_url, timeout=60, headers=HTML) as made:
        made.app = service.app
        assert sign_in(made, make_key(service, *scopes, name=name)).status_code == 303
        yield made


def row_of(page: str, name: str) -> str:
    """Return the text of the table row with this name."""
    for row in re.findall(r"<tr[^>]*>.*?</tr>", page, re.S):
        head = re.search(r'<th scope="row">(.*?)</th>', row, re.S)
        if head and f"{_words(head[1])} ".startswith(f"{name} "):
            return _words(row)
    raise AssertionError(f"no row of {name}: {page}")


def _words(text: str) -> str:
    return " ".join(Shell(text).words.split())


@contextmanager
def statements(client: Local) -> Iterator[list[str]]:
    """Record the service's SQL statements in the block, except those on keys, which always run."""
    engine, seen = client.app.state.parts.database.engine, []

    def note(_connection, _cursor, statement, *_):
        if "FROM keys" not in statement and statement.startswith("SELECT"):
            seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)
