"""A PostgreSQL whose processes are paused: calls are refused in time and later succeed again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from helpers.backends import environment
from helpers.database_servers import Postgres, postgres
from helpers.live_service import Running, running, wait_until
from sqlalchemy import text

from service.errors import Unavailable
from service.storage.database import DATABASE_DOWN, Database
from service.worker.startup import prepare_database

# the setting's default is 3; a busy machine is late
LONGEST = 6.0
RECOVERY = 30.0
MAX_THREADS = 80  # 40 for calls, and those of the service
PATHS = ("/readyz", "/v1/calibrators", "/v1/runs", "/v2/health/ready")


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """Run a cluster that may be paused without affecting other tests."""
    with postgres() as started:
        yield started


@pytest.fixture(scope="module")
def url(server: Postgres) -> str:
    server.execute("CREATE DATABASE paused")
    database = Database(server.url("paused"))
    prepare_database(database)
    database.close()
    return server.url("paused")


@contextmanager
def paused(server: Postgres) -> Iterator[None]:
    """Pause all processes of a cluster, like a hung disk or hypervisor."""
    first = psutil.Process(int((server.data / "postmaster.pid").read_text().splitlines()[0]))
    os.kill(first.pid, signal.SIGSTOP)  # first, so that it starts no more processes
    stopped = [first.pid, *(child.pid for child in first.children(recursive=True))]
    for pid in stopped[1:]:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(stopped):
            os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def blobs_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return (tmp_path_factory.mktemp("paused") / "blobs").as_uri()


@pytest.fixture
def service(url: str, blobs_url: str, tmp_path: Path) -> Iterator[Running]:
    settings = environment({"database_url": url, "blobs_url": blobs_url})
    with running(tmp_path, "--workers", "0", **settings) as started:
        yield started


def asked(service: Running, path: str) -> tuple[int, float]:
    """Return the status of a response, and how long it took."""
    began = time.monotonic()
    status = httpx.get(f"{service.url}{path}", timeout=60).status_code
    return status, time.monotonic() - began


def database_status(service: Running) -> str:
    """Return the status of the database according to /readyz."""
    found: str = httpx.get(f"{service.url}/readyz", timeout=60).json()["database"]
    return found


def test_calls_are_refused_in_time_and_recover_automatically(
    service: Running, server: Postgres
) -> None:
    for path in PATHS[1:3]:
        assert asked(service, path)[0] == 200
    with paused(server):
        for path in PATHS:
            status, seconds = asked(service, path)
            assert status == 503, path
            assert seconds < LONGEST, path
        answer = httpx.get(f"{service.url}/v1/runs", timeout=60)
        assert answer.json()["code"] == "database_unavailable"
        assert asked(service, "/healthz")[0] == 200
    for path in PATHS[1:3]:
        wait_until(lambda path=path: asked(service, path)[0] == 200, RECOVERY)
    wait_until(lambda: database_status(service) == "ok", RECOVERY)
    assert "Traceback" not in service.log.read_text()


def test_many_calls_do_not_pile_up(service: Running, server: Postgres) -> None:
    process = psutil.Process(service.process.pid)
    with ThreadPoolExecutor(60) as many:
        list(many.map(lambda _: asked(service, "/v1/runs"), range(120)))
        with paused(server):
            answers = list(many.map(lambda _: asked(service, "/v1/runs"), range(240)))
            threads = process.num_threads()
    assert {status for status, _ in answers} == {503}
    # calls that wait for a thread are refused as soon as the first ones time out
    assert max(seconds for _, seconds in answers) < LONGEST
    assert threads < MAX_THREADS
    wait_until(lambda: asked(service, "/v1/runs")[0] == 200, RECOVERY)


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    made = Database(url, seconds=2.0)
    yield made
    made.close()


def test_a_transaction_that_is_under_way_ends_in_time(database: Database, server: Postgres) -> None:
    with pytest.raises(DATABASE_DOWN), database.write() as store:  # noqa: PT012
        store.keys.count()
        with paused(server):
            began = time.monotonic()
            try:
                store.keys.count()
            finally:
                assert time.monotonic() - began < LONGEST
    wait_until(lambda: answers(database), RECOVERY)


def answers(database: Database) -> bool:
    """Return whether a database completes a transaction."""
    try:
        with database.read() as store:
            store.keys.count()
    except DATABASE_DOWN:
        return False
    return True


def test_after_a_missed_deadline_callers_are_refused_at_once(
    database: Database, server: Postgres
) -> None:
    assert answers(database)
    with paused(server):
        assert not answers(database)
        began = time.monotonic()
        assert not any(answers(database) for _ in range(100))
        assert time.monotonic() - began < 1
    wait_until(lambda: answers(database), RECOVERY)


def test_a_first_connection_times_out(url: str, server: Postgres) -> None:
    database = Database(url, seconds=2.0)
    with paused(server):
        began = time.monotonic()
        with pytest.raises(DATABASE_DOWN), database.read():
            pass
        assert time.monotonic() - began < LONGEST
    wait_until(lambda: answers(database), RECOVERY)
    database.close()


def test_the_callers_own_time_between_statements_does_not_count(url: str) -> None:
    database = Database(url, seconds=1.0)
    with database.read() as store:
        store.keys.count()
        time.sleep(1.5)
        assert store.keys.count() == 0
    database.close()


def test_a_slow_statement_is_busy_and_keeps_its_connection(database: Database) -> None:
    with database.read() as store:
        first = store.session.scalar(text("SELECT pg_backend_pid()"))
    with pytest.raises(Unavailable) as told, database.read() as store:
        store.session.execute(text("SELECT pg_sleep(30)"))
    assert told.value.code == "database_busy"
    with database.read() as store:
        assert store.session.scalar(text("SELECT pg_backend_pid()")) == first


def test_waiting_for_an_exhausted_pool_times_out(url: str) -> None:
    database = Database(url, seconds=1.0)
    release = threading.Event()

    def hold() -> None:
        with database.read() as store:
            store.keys.count()
            release.wait(30)

    threads = [threading.Thread(target=hold) for _ in range(30)]
    for thread in threads:
        thread.start()
    wait_until(lambda: database.engine.pool.checkedout() == 30)
    began = time.monotonic()
    try:
        with pytest.raises(DATABASE_DOWN), database.read():
            pass
        assert time.monotonic() - began < LONGEST
    finally:
        release.set()
        for thread in threads:
            thread.join()
    with database.read() as store:
        assert store.keys.count() == 0
    database.close()


def test_other_databases_of_the_program_have_no_deadline(url: str) -> None:
    patient = Database(url)
    with patient.read() as store:
        assert store.session.scalar(text("SELECT 1 FROM pg_sleep(4)")) == 1
    patient.close()
