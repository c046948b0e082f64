"""Control characters are refused by the service and escaped on the terminal."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from helpers.hostile_server import Hostile, hostile
from helpers.live_service import Running
from helpers.refusals import refused

import calibrd
from calibrators.methods.temperature import TemperatureMap
from calibrd.cli.arguments import run

EVIL = "a\x1b[2J\x1b]0;owned\x07b\rc\x00\x9b31md\u202ee\u2066f\u2028g\x7f"
# characters that could mislead a terminal or a reader
RAW = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
BAD = [
    "\x1b[31m",
    "a\rb",
    "\x9b31m",
    "\u202eevil",
    "\u2066x",
    "a\u2028b",
    "\x7f",
    "a\x08b",
    "\ufeff",
]


@pytest.fixture(scope="module")
def made(service: Running) -> calibrd.Version:
    with calibrd.Client(service.url) as client:
        version = client.register("control", TemperatureMap(k=3, temperature=1.5))
        client.promote("control", version, reason="none yet", force=True)
        client.open_run("control")
        return version


@pytest.mark.parametrize("text", BAD, ids=ascii)
def test_the_service_refuses_them(client: calibrd.Client, made: calibrd.Version, text: str) -> None:
    fitted = TemperatureMap(k=3, temperature=1.5)
    with refused("bad_reason"):
        client.promote("control", made, alias=f"at{len(text)}", reason=text + "!", force=True)
    with refused("bad_description"):
        client.annotate(made, description=text)
    with refused("bad_tag"):
        client.annotate(made, tags={"owner": text})
    with refused("bad_model"):
        client.register("control", fitted, model=text)
    with refused("bad_description"):
        client.register("control", fitted, description=text)
    with refused("bad_description"):
        client.update_run("control", description=text)
    with refused("bad_tag"):
        client.open_run("control", tags={"owner": text})
    with refused("bad_name"):
        client.create_key(text, ["admin"])


@pytest.mark.parametrize(
    "text",
    ["two\nlines\tand a tab", "from\r\na form", "größer, 日本語", "👩\u200d💻", "می\u200cخواهم"],
)
def test_the_service_accepts_text_that_people_write(
    client: calibrd.Client, made: calibrd.Version, text: str
) -> None:
    assert client.annotate(made, description=text).description == text
    assert client.update_run("control", description=text).description == text
    line = text.splitlines()[0].replace("\t", " ")
    assert client.annotate(made, tags={"owner": line}).tags == {"owner": line}


def documents() -> dict[str, Any]:
    """Return responses of a malicious service: all free text contains control characters."""
    version = {
        "calibrator": "good",
        "number": 1,
        "method": EVIL,
        "params": {},
        "seed": None,
        "kind": EVIL,
        "classes": 3,
        "model": EVIL,
        "dataset_sha256": None,
        "rows": 5,
        "verdict": EVIL,
        "fit": None,
        "fit_info": {},
        "libraries": {},
        "map_sha256": "0" * 64,
        "map_bytes": 1,
        "has_onnx": False,
        "tags": {EVIL: EVIL},
        "description": EVIL,
        "created_by": EVIL,
        "created_at": None,
    }
    move = {
        "revision": 1,
        "from_version": None,
        "to_version": 1,
        "moved_by": EVIL,
        "moved_at": None,
        "reason": f"{EVIL}\n2  1  2  forged",
        "forced": False,
        "rollback": False,
    }
    run_of = {
        "name": "good",
        "kind": EVIL,
        "settings": None,
        "step": 1,
        "metrics": None,
        "tags": {},
        "description": EVIL,
        "archived": False,
        "created_by": EVIL,
        "created_at": None,
        "updated_at": None,
    }
    alias = {"name": "production", "version": 1, "revision": 1, "moved_at": None, "warning": EVIL}
    return {
        "/v1/calibrators/good/versions": {"items": [version], "next": None},
        "/v1/calibrators/good/aliases/production/history": {"items": [move], "next": None},
        "/v1/calibrators/good/aliases/production": alias,
        "/v1/calibrators": {"items": [{"name": EVIL, "latest": 1}], "next": None},
        "/v1/runs": {"items": [run_of], "next": None},
    }


@pytest.mark.parametrize("is_json", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("versions", "good"),
        ("history", "good"),
        ("runs",),
        ("promote", "good", "1"),
        ("report", "good@production"),
    ],
    ids=lambda words: words[0],
)
def test_nothing_raw_reaches_the_terminal(
    words: tuple[str, ...], is_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with hostile() as server:
        for path, document in documents().items():
            server.say(path, document)
        _problem(server, "/v1/calibrators/good/versions/1/report")
        flags = ["--json"] if is_json else []
        code = run([*words, "--url", server.url, "--retry-seconds", "0", *flags])
        assert server.seen
    out, err = capsys.readouterr()
    assert not RAW.search(out + err), ascii(out + err)
    assert "unexpected" not in out + err
    if is_json:
        json.loads(out)
    elif words[0] == "history":
        assert code == 0
        assert len(out.splitlines()) == 2  # no line of the table can be forged
        assert "\\x1b[2J" in out
        assert "\\u202e" in out


def _problem(server: Hostile, path: str) -> None:
    server.say(path, {"code": EVIL, "detail": EVIL, "request_id": EVIL})
    server.answers[path].status = 409
