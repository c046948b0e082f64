"""A blob store that hangs or lacks its bucket: reported quickly, with the right cause."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from helpers.backends import Fleet
from helpers.live_service import in_process
from helpers.tcp_proxy import line
from sqlalchemy import make_url

from service.errors import Unavailable
from service.storage.blobs import Blobs, _unavailable


def test_health_and_readiness_respond_while_the_store_hangs(
    shared_fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with line(make_url(shared_fleet.blobs.url).port or 0) as its_line:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{its_line.port}")
        with in_process(**shared_fleet.settings(tmp_path)) as client:
            assert client.get("/readyz").json()["blobs"] == "ok"
            time.sleep(1.1)  # responses are cached for this long
            its_line.cut()
            began = time.monotonic()
            assert client.get("/readyz").json()["blobs"] == "the blob store is not responding"
            assert client.get("/healthz").status_code == 200
            assert time.monotonic() - began < 8


def test_a_missing_bucket_is_not_damage(shared_fleet: Fleet) -> None:
    damages: list[str] = []
    blobs = Blobs("s3://no-such-bucket/x", on_damage=lambda key, _: damages.append(key))
    for call in (
        lambda: blobs.put("a", b"b"),
        lambda: blobs.get("a", 64 * "0"),
        lambda: list(blobs.chunks("a", 64 * "0")),
        blobs.ping,
    ):
        with pytest.raises(Unavailable):
            call()
    assert not damages


def test_the_reason_of_s3_is_named(shared_fleet: Fleet, tmp_path: Path) -> None:
    settings = {**shared_fleet.settings(tmp_path), "blobs_url": "s3://no-such-bucket/x"}
    with in_process(**settings) as client:
        assert "NoSuchBucket" in client.get("/readyz").json()["blobs"]


def test_refused_access_and_missing_credentials_are_named() -> None:
    denied = "Client error with status 403 Forbidden: <Error><Code>AccessDenied</Code></Error>"
    assert _unavailable(denied).message == "the blob store reports AccessDenied"
    assert "AWS_ACCESS_KEY_ID" in _unavailable("connect to 169.254.169.254: timed out").message
