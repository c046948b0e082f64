"""The real service for tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from helpers.backends import Backend, Embedded, environment
from helpers.backups import Kept, backed_up
from helpers.fit_fixtures import Place
from helpers.live_service import Local, Running, in_process, running

from service.access import keys
from service.access.permissions import Scope


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests marked with both_backends on both storage backends, or on one if marked so."""
    marked = {one.name for one in metafunc.definition.iter_markers()}
    if "both_backends" in marked and "backend" in metafunc.fixturenames:
        backends = ["embedded"] if "one_backend" in marked else ["embedded", "fleet"]
        metafunc.parametrize("backend", backends, indirect=True, scope="session")


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Backend:
    """Return the storage backend: SQLite with a folder, or PostgreSQL with S3 (``fleet``)."""
    if getattr(request, "param", "embedded") == "embedded":
        return Embedded()
    found: Backend = request.getfixturevalue("shared_fleet")
    return found


@pytest.fixture(scope="session")
def service(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a service without keys and with one worker, for tests that only add data."""
    settings = backend.settings(tmp_path_factory.mktemp("service"))
    with running(settings["data_dir"], **environment(settings)) as started:
        yield started


@pytest.fixture
def client(service: Running) -> Iterator[httpx.Client]:
    """A client of the shared service."""
    with service.client() as made:
        yield made


@pytest.fixture
def local(backend: Backend, tmp_path: Path) -> Iterator[Local]:
    """Return the app in process, without keys or workers, so that fits stay queued."""
    with in_process(**backend.settings(tmp_path)) as made:
        yield made


@pytest.fixture
def place(backend: Backend, tmp_path: Path) -> Iterator[Place]:
    """Return a new workspace with a queue that no worker serves."""
    made = Place(**backend.settings(tmp_path))
    yield made
    made.close()


@pytest.fixture(scope="session")
def shared_app(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Run the app in process, for tests that each use a workspace of their own in it."""
    with in_process(**backend.settings(tmp_path_factory.mktemp("shared"))) as made:
        yield made


@pytest.fixture
def tenant(shared_app: Local) -> Iterator[httpx.Client]:
    """Return a client with a workspace of its own."""
    parts = shared_app.app.state.parts
    with parts.database.write() as store:
        workspace = keys.workspace_named(store, f"ws-{uuid.uuid4().hex}", make=True).id
        made = keys.create(store, workspace, name="tests", scopes=[Scope.ADMIN])
    parts.keys.refresh()
    headers = {"Authorization": f"Bearer {made.token}"}
    with httpx.Client(base_url=shared_app.base_url, timeout=60, headers=headers) as client:
        yield client


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Return a backup, for tests that change neither the backup nor its source."""
    return backed_up(tmp_path_factory.mktemp("kept"))
