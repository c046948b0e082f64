"""Access to the database, and the errors if it is full, slow or unavailable."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.backends import Fleet
from helpers.live_service import Local
from sqlalchemy import Engine, event, make_url, text

from service.errors import Unavailable
from service.storage.database import DATABASE_DOWN, Database, connection_arguments

pytestmark = pytest.mark.both_backends

REFUSING = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = 'disk_full'; END $$
"""
TRIGGER = "CREATE TRIGGER full_disk BEFORE INSERT ON datasets EXECUTE FUNCTION refuse()"


@pytest.fixture
def postgresql(shared_fleet: Fleet, tmp_path: Path) -> Iterator[Database]:
    made = Database(shared_fleet.settings(tmp_path)["database_url"])
    yield made
    made.close()


def setting(engine: Engine, name: str) -> str:
    with engine.connect() as connection:
        return str(connection.execute(text(f"SHOW {name}")).scalar())


def test_statements_and_locks_have_limits_but_migrations_have_none(postgresql: Database) -> None:
    limits = {"statement_timeout": "30s", "lock_timeout": "10s"}
    for name, limit in {**limits, "idle_in_transaction_session_timeout": "10s"}.items():
        assert setting(postgresql.engine, name) == limit
        assert setting(postgresql.unlimited, name) == "0"


def test_both_ends_soon_notice_a_broken_connection(postgresql: Database) -> None:
    for engine in (postgresql.engine, postgresql.unlimited):
        assert setting(engine, "application_name") == "calibrd"
        assert setting(engine, "tcp_keepalives_idle") == "5"
        assert setting(engine, "tcp_user_timeout") == "10000"
        with engine.connect() as connection:
            number = os.dup(connection.connection.driver_connection.fileno())
        with socket.socket(fileno=number) as ours:
            assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5


def test_the_url_takes_precedence() -> None:
    url = make_url("postgresql://h/n?connect_timeout=9&options=-c%20statement_timeout%3D1h")
    arguments = connection_arguments(url)
    assert "connect_timeout" not in arguments
    assert arguments["options"].endswith("-c statement_timeout=1h")


@contextmanager
def full(database: Database) -> Iterator[None]:
    """Return a full database: SQLite may have no more pages, PostgreSQL's error is simulated."""
    if not database.is_sqlite:
        with database.write() as store:
            store.session.execute(text(REFUSING))
            store.session.execute(text(TRIGGER))
        yield
        with database.write() as store:
            store.session.execute(text("DROP TRIGGER full_disk ON datasets"))
        return
    with database.read() as store:
        limits = [store.session.execute(text("PRAGMA page_count")).scalar()]

    @event.listens_for(database.engine, "checkout")
    def limit(connection: Any, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {limits[-1]}")

    yield
    limits.append(1 << 30)


def test_a_full_database_gives_507_and_still_reads(local: Local) -> None:
    def begin_upload() -> httpx.Response:
        return local.post("/v1/datasets?upload=parts")

    with full(local.app.state.parts.database):
        answers = (begin_upload() for _ in range(500))
        refused = next(answer for answer in answers if answer.status_code != 201)
        assert (refused.status_code, refused.json()["code"]) == (507, "no_space")
        assert local.get("/v1/datasets").status_code == 200
    assert begin_upload().status_code == 201


@pytest.mark.parametrize("limit", ["statement_timeout", "lock_timeout"])
def test_slow_statements_have_their_own_codes(postgresql: Database, limit: str) -> None:
    def wait() -> None:
        with postgresql.write() as store:
            store.session.execute(text(f"SET LOCAL {limit} = 100"))
            store.session.execute(text("LOCK TABLE keys"))

    with postgresql.write() as holder:
        holder.session.execute(text("LOCK TABLE keys"))
        with pytest.raises(Unavailable) as told:
            wait()
    assert told.value.code == "database_busy"


def test_a_transaction_that_was_idle_too_long_can_be_retried(postgresql: Database) -> None:
    with pytest.raises((Unavailable, *DATABASE_DOWN)), postgresql.write() as store:  # noqa: PT012
        store.session.execute(text("SET LOCAL idle_in_transaction_session_timeout = 100"))
        time.sleep(0.5)
        store.keys.count()
    with postgresql.read() as store:
        assert store.keys.count() == 0


def test_a_database_that_accepts_no_writes_counts_as_unavailable(postgresql: Database) -> None:
    with pytest.raises(DATABASE_DOWN), postgresql.write() as store:  # noqa: PT012
        store.session.execute(text("SET TRANSACTION READ ONLY"))  # like a standby
        store.keys.add_workspace("new")


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_connection_in_use_is_closed_when_it_is_returned(
    kind: str, postgresql: Database, tmp_path: Path
) -> None:
    database = postgresql if kind == "postgresql" else Database(f"sqlite:///{tmp_path / 'a.db'}")
    with database.engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        database.close()
        assert connection.execute(text("SELECT 1")).scalar() == 1
    with pytest.raises(Exception, match="closed"):
        driver.cursor().execute("SELECT 1")
