"""The API reference: complete, self-contained, well-formed, safe; its curl lines run."""

from __future__ import annotations

import asyncio
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from service.app import create_app
from service.settings import Settings
from service.web.pages import api_reference
from service.web.pages.api_reference import reference_page

VOID = {"meta", "link", "wbr"}
HEADINGS = {"h1", "h2", "h3", "h4"}
METHODS = ("get", "head", "post", "put", "patch", "delete")
QUICK = (
    "get-healthz",
    "get-metrics",
    "get-v1-methods",
    "get-v1-datasets",
    "get-v1-datasets-id",
    "get-v1-calibrators-name-versions-number-report-png",
    "get-v1-calibrators-name-ref-predict",
    "get-v2",
    "get-v2-models-name-ready",
    "post-v1-calibrators-name-ref-predict",
    "head-v1-datasets-id",
)
HOSTILE = "<script>alert('x')</script>"


class Page(HTMLParser):
    """The parts of a page; fails where tags do not balance."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.rows: list[str] = []
        self.headings: list[int] = []
        self.curl_lines: dict[str, str] = {}
        self._open: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        assert len(found) == len(attrs)
        self.tags.append(tag)
        self.links += [found[name] for name in ("href", "src", "action", "srcset") if name in found]
        assert not [name for name in found if name.startswith("on")]
        if "id" in found:
            self.ids.append(found["id"])
        if tag in HEADINGS:
            self.headings.append(int(tag[1]))
        if tag == "h3":
            self.rows.append("")
        if found.get("class") == "curl":
            self.curl_lines[self.ids[-1]] = ""
        if tag not in VOID:
            self._open.append((tag, found.get("class", "")))

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag

    def handle_data(self, data):
        if ("h3", "") in self._open:
            self.rows[-1] += data
        if ("pre", "curl") in self._open:
            self.curl_lines[self.ids[-1]] += data


@pytest.fixture(scope="module")
def document(tmp_path_factory) -> dict:
    data_dir = tmp_path_factory.mktemp("reference")
    return create_app(Settings(data_dir=data_dir, workers=0)).openapi()


@pytest.fixture(scope="module")
def text(document) -> str:
    return reference_page(document)


@pytest.fixture(scope="module")
def page(text) -> Page:
    return Page(text)


def small(**operation) -> dict:
    said = {"responses": {}, **operation}
    info = {"title": "small", "version": "1"}
    return {"openapi": "3.1.0", "info": info, "paths": {"/things/{id}": {"get": said}}}


def test_every_operation_is_there_with_its_summary(document, page):
    rows = sorted(" ".join(row.split()) for row in page.rows)
    assert rows == sorted(
        f"{method.upper()} {path} {' '.join(item[method]['summary'].split())}"
        for path, item in document["paths"].items()
        for method in METHODS
        if method in item
    )
    assert any("@{ref}/predict" in row for row in rows)
    assert any("/v2/models/{name}/infer" in row for row in rows)


def test_page_needs_nothing_else_and_runs_nothing(text, page):
    assert not {"script", "iframe", "object", "embed", "form", "img", "base"} & set(page.tags)
    assert {one for one in page.links if not one.startswith("#")} == {
        "data:,",
        "openapi.json",
        "runs",
    }
    style = text.split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert "{{" not in text
    assert "{%" not in text


def test_links_lead_somewhere_and_headings_are_in_order(text, page):
    assert len(page.ids) == len(set(page.ids))
    assert {one[1:] for one in page.links if one.startswith("#")} == set(page.ids)
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    steps = zip(page.headings, page.headings[1:], strict=False)
    assert all(after <= before + 1 for before, after in steps)
    assert '<html lang="en">' in text


def test_hostile_strings_are_only_text():
    field = {"name": HOSTILE, "in": "query", "description": f"`{HOSTILE}`", "required": True}
    schema = {
        "type": "object",
        "title": HOSTILE,
        "properties": {HOSTILE: {"enum": [HOSTILE], "pattern": HOSTILE, "description": HOSTILE}},
    }
    content = {HOSTILE: {"schema": schema, "example": HOSTILE}}
    document = small(
        summary=HOSTILE,
        description=f"{HOSTILE}\n\n``{HOSTILE}``",
        tags=[HOSTILE],
        parameters=[{**field, "schema": {"type": "string", "default": HOSTILE}}],
        requestBody={"content": content, "description": HOSTILE},
        responses={HOSTILE: {"description": HOSTILE, "content": content}},
    )
    document["info"] = {"title": HOSTILE, "version": HOSTILE, "description": HOSTILE}
    document["tags"] = [{"name": HOSTILE, "description": HOSTILE}]
    document["paths"][f'/"{HOSTILE}'] = {"get": {"summary": HOSTILE, "responses": {}}}
    text = reference_page(document)
    assert "<script" not in text
    assert text.count("&lt;script&gt;") > 20
    assert "script" not in Page(text).tags


def test_backticks_make_code_and_blank_lines_paragraphs():
    text = reference_page(small(description="One `a < b` two\nthree.\n\n``four`` five."))
    assert "<p>One <code>a &lt; b</code> two\nthree.</p>\n<p><code>four</code> five.</p>" in text


def test_schemas_that_hold_themselves_come_to_an_end():
    node = {
        "type": "object",
        "required": ["next", "all"],
        "properties": {
            "next": {"$ref": "#/components/schemas/Node"},
            "all": {"type": "array", "items": {"$ref": "#/components/schemas/Node"}},
        },
    }
    lists = {"type": "array", "items": {"$ref": "#/components/schemas/Lists"}}
    loop = {"$ref": "#/components/schemas/Loop"}
    names = ("Node", "Lists", "Loop", "Missing")
    document = small(
        requestBody={
            "content": {
                f"application/{name}+json": {"schema": {"$ref": f"#/components/schemas/{name}"}}
                for name in names
            }
        }
    )
    document["components"] = {"schemas": {"Node": node, "Lists": lists, "Loop": loop}}
    text = reference_page(document)
    assert "<code>next.all[].next</code>" in text
    assert len(text) < 100_000


def test_properties_of_references_are_listed_with_their_rules(text):
    listed = text.split('id="get-v1-datasets"')[1].split("</section>")[0]
    for said in ("≥ 1, ≤ 200", "default <code>50</code>", "<code>items[].parts[].sha256</code>"):
        assert said in listed


def test_curl_lines_have_bodies_files_and_keys(page):
    sent = page.curl_lines["put-v1-datasets-id-parts-number"]
    assert "-X PUT" in sent
    assert "--data-binary @file.bin" in sent
    assert "-H 'Content-Type: application/octet-stream'" in sent
    assert '-H "$AUTH"' in sent
    assert page.curl_lines["get-healthz"] == 'curl -s "$API/healthz"'
    assert len(page.curl_lines) == len(page.rows)


def test_nothing_in_a_curl_line_means_anything_to_the_shell(tmp_path):
    evil = "a'b\"$(touch ran)`touch ran`;touch ran&/?#"
    schema = {"type": "string"}
    parameters = [
        {"name": name, "in": place, "required": True, "example": evil, "schema": schema}
        for name, place in (("id", "path"), ("$(touch ran)", "query"), ("X-Evil", "header"))
    ]
    body = {"content": {"application/json": {"example": {"evil": evil}}}}
    (line,) = Page(
        reference_page(small(parameters=parameters, requestBody=body))
    ).curl_lines.values()
    shown = bash(f"curl() {{ printf '%s\\n' \"$@\"; }}; API=http://x; {line}", tmp_path)
    assert not (tmp_path / "ran").exists()
    assert f"X-Evil: {evil}" in shown
    address = shown.splitlines()[1]
    assert re.fullmatch(r"http://x/things/[\w%:,.-]+\?[\w%]+=[\w%:,./-]+", address)


@pytest.mark.parametrize("anchor", QUICK)
def test_curl_lines_run_as_pasted(page, service, tmp_path, anchor):
    counting = "curl() { command curl --max-time 20 -w '\\n%{http_code}' \"$@\"; }"
    printed = bash(f"{counting}\nAPI={service.url}\nAUTH=\n{page.curl_lines[anchor]}", tmp_path)
    status = int(printed.splitlines()[-1])
    may_be_missing = re.search("-(id|name)", anchor)  # other tests share the service
    assert status in ((200, 404) if may_be_missing else (200,))


def test_route_serves_the_page():
    app = FastAPI(docs_url=None)
    app.include_router(api_reference.router)

    @app.get("/v1/things", summary="List the things")
    def things() -> None: ...

    async def answers() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            calls = (("GET", "/docs"), ("HEAD", "/docs"))
            return [await client.request(*call) for call in calls]

    answer, head = asyncio.run(answers())
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "List the things" in answer.text
    assert len(Page(answer.text).rows) == 1
    assert head.status_code == 200


def bash(script: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
