"""The real service for tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from helpers.backends import Backend, Embedded
from helpers.live_service import Local, Running, in_process, running


@pytest.fixture(scope="session")
def backend() -> Backend:
    """How things are stored; the tests of the folder ``storage`` run over both ways."""
    return Embedded()


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service without keys and with one worker, for all tests that only add to it."""
    with running(tmp_path_factory.mktemp("service")) as started:
        yield started


@pytest.fixture
def client(service: Running) -> Iterator[httpx.Client]:
    """A client of the shared service."""
    with service.client() as made:
        yield made


@pytest.fixture
def local(backend: Backend, tmp_path: Path) -> Iterator[Local]:
    """The app in process, without keys and without workers: fits wait."""
    with in_process(**backend.settings(tmp_path)) as made:
        yield made
