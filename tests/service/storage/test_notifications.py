"""Changes by one replica reach the others at once, and eventually in any case."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from helpers.backends import Fleet
from helpers.fit_fixtures import Place
from helpers.live_service import Local, in_process, wait_until
from helpers.registration import temperature_registration
from helpers.tcp_proxy import line
from sqlalchemy import make_url

from service.concurrency import long_poll
from service.concurrency.long_poll import Watcher
from service.storage.database import Database
from service.storage.notifications import (
    CHANGES,
    FITS,
    FITS_DONE,
    NotificationListener,
    announce,
)

ALIAS = "/v1/calibrators/c/aliases/production"
RARELY = 30.0
LISTENERS = "FROM pg_stat_activity WHERE query LIKE 'LISTEN calibrd%'"


def moved(client: Local, version: int) -> bool:
    body = {"version": version, "force": True, "reason": "test"}
    return client.put(ALIAS, json=body).status_code == 200


def move(client: Local, version: int) -> None:
    assert moved(client, version)


def serves(client: Local, version: int) -> bool:
    answer = client.get("/v1/calibrators/c@production/predict?logits=3,1,0")
    return answer.json()["version"] == version


@pytest.fixture
def settings(shared_fleet: Fleet, tmp_path: Path) -> dict[str, object]:
    return shared_fleet.settings(tmp_path)


@pytest.fixture
def replicas(settings: dict[str, object]) -> Iterator[tuple[Local, Local]]:
    """Run two replicas that poll every 30 seconds and serve version 1 of 2."""
    settings["refresh_seconds"] = RARELY
    with in_process(**settings) as one, in_process(**settings) as other:
        prepare(one, other)
        wait_until(lambda: len(listeners(settings)) == 2)
        yield one, other


def prepare(one: Local, other: Local) -> None:
    for temperature in (1.0, 2.0):
        body = temperature_registration(temperature)
        assert one.post("/v1/calibrators/c/versions", json=body).status_code == 201
    move(one, 1)
    assert serves(one, 1)
    assert serves(other, 1)


def listeners(settings: dict[str, object]) -> list[int]:
    """Return the server processes of the replicas' listening connections to this database."""
    with psycopg.connect(str(settings["database_url"])) as connection:
        query = f"SELECT pid {LISTENERS} AND datname = current_database()"
        return [pid for (pid,) in connection.execute(query.encode())]


def test_moves_and_keys_reach_replicas_at_once(replicas: tuple[Local, Local]) -> None:
    one, other = replicas
    move(one, 2)
    wait_until(lambda: serves(other, 2), 2)
    made = one.post("/v1/keys", json={"name": "root", "scopes": ["admin"]}).json()
    wait_until(lambda: other.get("/v1/calibrators").status_code == 401, 2)
    root = {"Authorization": f"Bearer {made['token']}"}
    assert other.get("/v1/calibrators", headers=root).status_code == 200
    second = {"name": "second", "scopes": ["predict"]}
    made = one.post("/v1/keys", json=second, headers=root).json()
    reader = {"Authorization": f"Bearer {made['token']}"}
    wait_until(lambda: other.get("/v1/calibrators", headers=reader).status_code == 200, 2)
    assert one.delete(f"/v1/keys/{made['key']['id']}", headers=root).status_code == 200
    wait_until(lambda: other.get("/v1/calibrators", headers=reader).status_code == 401, 2)


def test_changes_during_a_broken_connection_are_read_later(
    replicas: tuple[Local, Local], settings: dict[str, object], shared_fleet: Fleet
) -> None:
    one, other = replicas
    name = make_url(str(settings["database_url"])).database
    shared_fleet.database.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    shared_fleet.database.execute(
        f"SELECT pg_terminate_backend(pid) {LISTENERS} AND datname = '{name}'"
    )
    # its only open connection may be polling, because the other one broke
    wait_until(lambda: moved(one, 2), 10)
    assert serves(other, 1)
    shared_fleet.database.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    wait_until(lambda: serves(other, 2), 30)


def test_replicas_that_cannot_listen_poll(settings: dict[str, object]) -> None:
    url = make_url(str(settings["database_url"]))
    with line(url.port or 0, refused=b"LISTEN calibrd_news") as deaf:
        through = url.set(port=deaf.port).render_as_string(hide_password=False)
        with (
            in_process(**settings) as one,
            in_process(**{**settings, "database_url": through}, refresh_seconds=1) as other,
        ):
            prepare(one, other)
            assert len(listeners(settings)) == 1
            move(one, 2)
            wait_until(lambda: serves(other, 2), 2)


def test_replicas_with_thousands_of_connections_are_notified(settings: dict[str, object]) -> None:
    taken = [os.dup(0) for _ in range(1100)]
    database, news = Database(str(settings["database_url"])), threading.Event()
    try:
        with NotificationListener(database.unlimited, {CHANGES: news.set}):
            assert news.wait(10)  # it polls once when it begins to listen
            news.clear()
            with database.write() as store:
                announce(store.session)
            assert news.wait(10)
    finally:
        database.close()
        for one in taken:
            os.close(one)


@pytest.mark.both_backends
def test_new_and_finished_fits_are_notified(place: Place) -> None:
    waiting, ended = threading.Event(), threading.Event()
    calls = {FITS: waiting.set, FITS_DONE: ended.set}
    with NotificationListener(place.database.unlimited, calls, poll_seconds=0.01):
        for event in (waiting, ended):
            assert event.wait(10)  # it polls once when it begins to listen
        time.sleep(0.1)
        waiting.clear()
        fit = place.start_fit(place.dataset(), ("temperature", {}))
        assert waiting.wait(10)
        ended.clear()
        with place.database.write() as store:
            store.fits.cancel(fit.id)
        assert ended.wait(10)


def test_a_connection_without_limit_has_no_deadline_left_by_another(tmp_path: Path) -> None:
    """SQLite's poll used to be interrupted every two minutes, with a warning in the log."""
    database = Database(f"sqlite:///{tmp_path}/calibrd.db", seconds=0.05)
    with database.engine.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
    time.sleep(0.1)
    many = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000) "
        "SELECT count(*) FROM n"
    )
    raw = database.unlimited.raw_connection()
    assert raw.cursor().execute(many).fetchone() == (200_000,)
    raw.close()
    database.close()


def test_waiting_requests_are_woken() -> None:
    """The next poll would never happen."""
    state = {"a": 0}

    async def wait() -> int:
        watcher = Watcher[str, int]("numbers", lambda _: dict(state))
        waits = asyncio.create_task(watcher.until("a", 0, bool, 20.0))
        await asyncio.sleep(0.1)
        state["a"] = 1
        watcher.wake()
        found = await waits
        await watcher.close()
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(long_poll, "POLL_SECONDS", 60.0)
        began = time.monotonic()
        assert asyncio.run(wait()) == 1
    assert time.monotonic() - began < 10
