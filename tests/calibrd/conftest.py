"""The SDK against the real service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.faulty_http_proxy import FaultyLine, faulty_line
from helpers.live_service import Running, running

import calibrd


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a service without keys and with one worker, for tests that only add data."""
    with running(tmp_path_factory.mktemp("service")) as started:
        yield started


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test its own cache, and do not use the machine's."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CALIBRD_CACHE_DIR", str(folder))
    monkeypatch.setenv("CALIBRD_STATE_DIR", str(tmp_path / "state"))
    for name in ("CALIBRD_URL", "CALIBRD_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def line(service: Running) -> Iterator[FaultyLine]:
    """Return a connection to the shared service that can be made to fail."""
    with faulty_line(service.url) as made:
        yield made


@pytest.fixture
def client(service: Running) -> Iterator[calibrd.Client]:
    """A client of the shared service."""
    with calibrd.Client(service.url) as made:
        yield made
