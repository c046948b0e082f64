"""A malicious service: path traversal in names, endless responses, malformed JSON."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import itertools
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.hostile_server import Chosen, Hostile, hostile
from helpers.live_service import ROOT

import calibrd
from calibrators import archive
from calibrators.methods.temperature import TemperatureMap
from calibrd.api.references import Reference
from calibrd.errors import CalibrdError, NotCalibrd
from calibrd.transport.response_bodies import MAX_BYTES

MAP = archive.dump(TemperatureMap(k=3, temperature=1.5))
VERSION: dict[str, Any] = {
    "calibrator": "good",
    "number": 1,
    "method": "temperature",
    "params": {},
    "seed": None,
    "kind": "logits",
    "classes": 3,
    "model": None,
    "dataset_sha256": None,
    "rows": None,
    "verdict": None,
    "fit": None,
    "fit_info": {},
    "libraries": {},
    "map_sha256": hashlib.sha256(MAP).hexdigest(),
    "map_bytes": len(MAP),
    "has_onnx": False,
    "tags": {},
    "description": "",
    "created_by": "x",
    "created_at": "2026-01-01T00:00:00+00:00",
}
ALIAS = {"name": "production", "version": 1, "revision": 1, "moved_at": None}
PLACE = "/v1/calibrators/good"


@pytest.fixture
def server() -> Iterator[Hostile]:
    with hostile() as made:
        made.say(f"{PLACE}/aliases/production", ALIAS)
        made.say(f"{PLACE}/versions/1", VERSION)
        made.answers[f"{PLACE}/versions/1/report"] = Chosen(
            lambda: [b'{"code": "no_report", "detail": "none"}'], 404
        )
        made.say(f"{PLACE}/versions/1/map", MAP)
        yield made


@pytest.fixture
def client(server: Hostile) -> Iterator[calibrd.Client]:
    with calibrd.Client(server.url, api_key="cal_secret", retry_seconds=0, timeout=10) as made:
        yield made


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


EVIL_NAMES = [
    "../../../escaped",
    "/tmp/escaped",  # noqa: S108
    "..",
    "a/b",
    "a\\b",
    "a\x00b",
    "x" * 5000,
    "",
    "name@alias",
    "\x1b[31m",
    5,
    None,
]


@pytest.mark.parametrize("name", EVIL_NAMES, ids=repr)
def test_a_name_never_leads_out_of_the_cache(
    server: Hostile, client: calibrd.Client, tmp_path: Path, name: Any
) -> None:
    server.say(f"{PLACE}/versions/1", {**VERSION, "calibrator": name})
    before = files_in(tmp_path)
    with pytest.raises(NotCalibrd):
        client.load(client.get_version("good@1"), refresh=None)
    assert files_in(tmp_path) == before


def test_a_hand_made_version_is_checked_as_well(client: calibrd.Client, tmp_path: Path) -> None:
    version = client.get_version("good@1")
    object.__setattr__(version, "calibrator", "../../../escaped")
    with pytest.raises(ValueError, match="a reference must be"):
        Reference.of(version)
    with pytest.raises(ValueError, match="a reference must be"):
        client.load(version, refresh=None)
    assert not list(tmp_path.parent.rglob("escaped*"))


@pytest.mark.parametrize("sha256", ["../../escaped", "", "A" * 64, 7, "0" * 63])
def test_a_hash_is_a_hash(server: Hostile, client: calibrd.Client, sha256: Any) -> None:
    server.say(f"{PLACE}/versions/1", {**VERSION, "map_sha256": sha256})
    with pytest.raises(NotCalibrd):
        client.load("good@1", refresh=None)


@pytest.mark.parametrize("number", ["..", "../keys", 1.5, True, None, 1e999, -(2**70), [1]])
def test_a_version_is_a_number(server: Hostile, client: calibrd.Client, number: Any) -> None:
    server.say(f"{PLACE}/aliases/production", {**ALIAS, "version": number})
    with pytest.raises(NotCalibrd):
        client.load("good@production", refresh=None)
    assert len(server.seen) == 1


def test_a_valid_response_is_loaded(client: calibrd.Client) -> None:
    assert client.load("good", refresh=None).apply([[1.0, 2.0, 3.0]]).shape == (1, 3)


def zeros() -> Iterator[bytes]:
    """Yield endless zeros, compressed with gzip."""
    packer = zlib.compressobj(9, wbits=31)
    while True:
        yield packer.compress(bytes(1 << 20)) or b""


ENDLESS = {
    "plain": Chosen(lambda: itertools.repeat(b" " * (1 << 16))),
    "gzip": Chosen(zeros, headers={"Content-Encoding": "gzip"}),
    "one long line": Chosen(
        lambda: itertools.repeat(b"x" * (1 << 16)), headers={"Content-Type": "text/event-stream"}
    ),
    "an error": Chosen(lambda: itertools.repeat(b"x" * (1 << 16)), 500),
    "told long": Chosen(lambda: [b"x"], headers={"Content-Length": str(1 << 40)}),
}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_response_ends(
    server: Hostile, client: calibrd.Client, kind: str, is_async: bool
) -> None:
    server.answers["/v1/methods"] = ENDLESS[kind]

    async def ask() -> None:
        async with calibrd.AsyncClient(server.url, retry_seconds=0) as other:
            await other.methods()

    with pytest.raises(NotCalibrd, match="bytes that this call allows"):
        asyncio.run(ask()) if is_async else client.methods()
    # data in the sockets' buffers comes on top
    assert server.sent_bytes < MAX_BYTES + (16 << 20)


def test_a_small_response_does_not_become_a_huge_one(server: Hostile) -> None:
    """The peak memory is measured in a separate process."""
    bomb = gzip.compress(bytes(1 << 30), 9)
    assert len(bomb) < 2 << 20
    server.answers["/v1/methods"] = Chosen(
        lambda: [bomb], headers={"Content-Encoding": "gzip", "Content-Length": str(len(bomb))}
    )
    code = f"""
import resource, calibrd
client = calibrd.Client({server.url!r}, retry_seconds=0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    client.methods()
except calibrd.errors.NotCalibrd as error:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    megabytes, words = done.stdout.split(" ", 1)
    assert "longer than" in words
    assert int(megabytes) < 250


def test_gzip_is_accepted(server: Hostile, client: calibrd.Client) -> None:
    packed = gzip.compress(json.dumps(VERSION).encode())
    server.answers[f"{PLACE}/versions/1"] = Chosen(
        lambda: [packed], headers={"Content-Encoding": "gzip"}
    )
    assert client.get_version("good@1").method == "temperature"
    assert server.seen[0][1]["accept-encoding"] == "gzip"


@pytest.mark.parametrize("coding", ["br", "zstd", "deflate", "gzip, gzip", "nonsense"])
def test_other_codings_are_refused(server: Hostile, client: calibrd.Client, coding: str) -> None:
    server.answers["/v1/methods"] = Chosen(lambda: [b"[]"], headers={"Content-Encoding": coding})
    with pytest.raises(NotCalibrd, match="which was not requested"):
        client.methods()


def test_a_map_is_not_longer_than_its_version_states(
    server: Hostile, client: calibrd.Client
) -> None:
    server.answers[f"{PLACE}/versions/1/map"] = Chosen(lambda: itertools.repeat(b"x" * (1 << 16)))
    with pytest.raises(NotCalibrd, match="longer than"):
        client.load("good@1", refresh=None)
    assert server.sent_bytes < MAX_BYTES + (16 << 20)


def test_a_redirect_is_not_followed(server: Hostile, client: calibrd.Client) -> None:
    with hostile() as other:
        for status in (301, 302, 307, 308):
            there = {"Location": f"{other.url}/v1/methods"}
            server.answers["/v1/methods"] = Chosen(lambda: [b""], status, there)
            with pytest.raises(NotCalibrd, match="redirects to"):
                client.methods()
        assert other.seen == []  # so the other server never gets the key


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"[" * 900 + b"]" * 900,
        b"1" * 100_000,
        b"[" + b"9" * 5000 + b"]",
        b"[1e999999]",
        b"NaN",
        b'[{"name": NaN}]',
        b"\xff\xfe\x00",
        b"",
        b"null",
        b'"text"',
        b'[{"name": 1}]',
    ],
    ids=lambda one: repr(one[:12]),
)
def test_odd_json_raises_our_error(server: Hostile, client: calibrd.Client, content: bytes) -> None:
    places = [
        "methods",
        "calibrators",
        "calibrators/good",
        "runs",
        "runs/r/state",
        "fits/f",
        "keys",
    ]
    for place in places:
        server.say(f"/v1/{place}", content)
    server.say(f"{PLACE}/versions/1/report", content)
    for ask in (
        client.methods,
        client.calibrators,
        lambda: client.get_calibrator("good"),
        client.runs,
        lambda: client.run_state("r"),
        lambda: client.wait("f", progress=False),
        client.keys,
        lambda: client.report("good@1"),
    ):
        with pytest.raises(CalibrdError):
            ask()


@pytest.mark.parametrize("status", [400, 409, 500])
def test_odd_problems_raise_our_errors(
    server: Hostile, client: calibrd.Client, status: int
) -> None:
    for content in (b"[" * 100_000, b'{"code": [], "detail": {}}', b'{"code": 1}', b"9" * 5000):
        server.answers["/v1/methods"] = Chosen(lambda content=content: [content], status)
        with pytest.raises(CalibrdError):
            client.methods()


def test_a_list_ends(server: Hostile, client: calibrd.Client) -> None:
    server.say("/v1/calibrators", {"items": [], "next": "again"})
    with pytest.raises(NotCalibrd, match="an empty page, but claims that more pages follow"):
        client.calibrators()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def huge_npy() -> bytes:
    """Return an npy file whose header declares 8 TB, with only a few bytes."""
    whole = npy(np.zeros((1, 3)))
    return whole.replace(b"(1, 3), }" + b" " * 12, b"(1000000000000, 3), }", 1)


@pytest.mark.parametrize(
    "content",
    [
        huge_npy(),
        npy(np.zeros((2, 3))),
        npy(np.zeros(3)),
        npy(np.array([["a", "b", "c"]])),
        npy(np.zeros((1, 3)))[:-1],
        b"\x93NUMPY\x09\x09" + b"x" * 100,
        b"PK\x03\x04" + b"x" * 100,
    ],
    ids=["huge", "rows", "shape", "text", "cut", "version", "zip"],
)
def test_odd_arrays_raise_our_errors(
    server: Hostile, client: calibrd.Client, content: bytes
) -> None:
    server.say("/v1/calibrators/good@1/predict", content, **{"Calibrd-Version": "good@1"})
    with pytest.raises(NotCalibrd, match="the response is"):
        client.predict("good@1", [[1.0, 2.0, 3.0]])


def test_odd_headers_name_no_version(server: Hostile, client: calibrd.Client) -> None:
    content = npy(np.full((1, 3), 1 / 3))
    server.say("/v1/calibrators/good@1/predict", content, **{"Calibrd-Version": "../x"})
    with pytest.raises(NotCalibrd, match="is not a version"):
        client.predict("good@1", [[1.0, 2.0, 3.0]])


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://[", 5, None, "", "http://a:0/x"])
def test_a_store_has_a_host(server: Hostile, url: Any) -> None:
    opened = {
        "id": "ds_1",
        "status": "uploading",
        "kind": None,
        "sha256": None,
        "bytes": None,
        "rows": None,
        "classes": None,
        "delete_after_fit": False,
        "expires_at": None,
        "created_at": None,
    }
    server.say("/v1/datasets", opened)
    server.say("/v1/datasets/ds_1/parts/presigned", {"parts": [{"url": url}]})
    logits = np.random.default_rng(0).normal(size=(2000, 3))
    labels = np.arange(2000) % 3
    with (
        calibrd.Client(server.url, retry_seconds=0, part_bytes=1024) as client,
        pytest.raises(NotCalibrd, match="must give a URL to send a part to"),
    ):
        client.upload(logits, labels, progress=False)


def test_progress_shows_what_can_be_shown(
    server: Hostile, client: calibrd.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    fit = {
        "id": "f",
        "calibrator": "good",
        "status": "succeeded",
        "methods": [],
        "dataset": "d",
        "evaluation": None,
        "seed": 0,
        "held_out": None,
        "model": None,
        "progress": {"step": "x", "total": 1e308, "methods": -5, "loss": "y", "method": "\x1b[2J"},
        "device": None,
        "attempt": 1,
        "cancel_requested": False,
        "versions": [],
        "error": None,
        "created_by": "x",
        "created_at": None,
        "started_at": None,
        "finished_at": None,
    }
    server.say("/v1/fits/f", fit)
    assert client.wait("f", progress=True).id == "f"
    server.say(f"{PLACE}/fits", fit)
    with pytest.raises(NotCalibrd):
        client.fit("good", dataset="ds_1", progress=False)
