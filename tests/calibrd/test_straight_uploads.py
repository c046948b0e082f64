"""Parts are sent directly to S3 without the key, or through the service if that fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.backends import Fleet
from helpers.faulty_http_proxy import FaultyLine, ReceivedRequest, Say, faulty_line, lose
from helpers.live_service import Local, in_process, sample

import calibrd

PART_BYTES = 2048


@pytest.fixture(scope="module")
def store(shared_fleet: Fleet) -> Iterator[FaultyLine]:
    """Return the connection of the service and the SDK to S3."""
    with faulty_line(shared_fleet.blobs.url) as line:
        yield line


@pytest.fixture(scope="module")
def local(
    shared_fleet: Fleet, store: FaultyLine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Local]:
    """Run a service on PostgreSQL and S3 that requires keys."""
    settings = shared_fleet.settings(tmp_path_factory.mktemp("straight"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", store.url)
        with in_process(**settings) as made:
            yield made


@pytest.fixture(scope="module")
def token(local: Local) -> str:
    with calibrd.Client(str(local.base_url)) as anyone:
        return anyone.create_key("uploads", ["admin"]).token


def is_signed(asked: ReceivedRequest) -> bool:
    """Return whether the SDK sent the request; the service signs its own in a header."""
    return asked.method == "PUT" and "X-Amz-Signature" in asked.path


def test_parts_are_sent_directly_to_the_store_without_the_key(
    local: Local, token: str, store: FaultyLine, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        faulty_line(str(local.base_url)) as line,
        calibrd.Client(line.url, token, part_bytes=PART_BYTES) as client,
        caplog.at_level(logging.DEBUG),
    ):
        made = client.upload(*sample(), progress=False)
        assert client.get_dataset(f"sha256:{made.sha256}") == made
    sent = [one for one in store.asked if is_signed(one)]
    assert sum(one.bytes for one in sent) == made.bytes
    assert len(sent) == -(-(made.bytes or 0) // PART_BYTES)
    assert line.count("PUT") == 0
    for one in sent:
        assert "authorization" not in one.headers
        assert token not in str(one)
    assert all(one.headers["authorization"] == f"Bearer {token}" for one in line.asked)
    logged = [record.getMessage() for record in caplog.records]
    assert sum(f"PUT {store.url}" in one for one in logged) == len(sent)
    # signed URLs must not appear in logs, because they allow writing
    assert not any("X-Amz-Signature" in one for one in logged)


def test_parts_go_through_the_service_if_the_store_takes_none(
    local: Local, token: str, store: FaultyLine, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def refuse(asked: ReceivedRequest) -> Say | None:
        return lose() if is_signed(asked) else None

    store.before = refuse
    with (
        faulty_line(str(local.base_url)) as line,
        calibrd.Client(line.url, token, part_bytes=PART_BYTES) as client,
        caplog.at_level(logging.WARNING, "calibrd"),
    ):
        made = client.upload(*sample(seed=1), progress=False)
    assert made.status == "ready"
    assert line.count("PUT") == -(-(made.bytes or 0) // PART_BYTES)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "calibrd"]
    assert "sending parts through the service from now on" in said
    assert "X-Amz-Signature" not in said
