"""Maps applied in process while the service dies, restarts, or refuses requests."""

from __future__ import annotations

import gc
import logging
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from helpers.faulty_http_proxy import Say, faulty_line
from helpers.live_service import by_the_clock, wait_until
from helpers.local_maps import LOGITS, Site, fitted, release
from helpers.refusals import refused

import calibrd
from calibrd.errors import (
    MapDamaged,
    NotCalibrd,
    ServiceAway,
    Unauthenticated,
)


@pytest.fixture(scope="module")
def whole_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site")).closing() as made:
        yield made


@pytest.fixture
def site(whole_site: Site) -> Site:
    """Return a service that is running when the test begins."""
    whole_site.start()
    return whole_site


@pytest.fixture
def client(site: Site) -> Iterator[calibrd.Client]:
    with calibrd.Client(site.url) as made:
        yield made


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [one.message for one in caplog.records if one.levelno == level]


def test_a_map_keeps_working_while_the_service_is_unavailable(
    site: Site, client: calibrd.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "calibrd")
    release(client, "outage", 2.0)
    with (
        calibrd.Client(site.url, retry_seconds=0.1) as hasty,
        hasty.load("outage", refresh=0.05) as local,
    ):
        seen = local.confirmed_at
        wait_until(lambda: local.confirmed_at > seen)
        site.kill()
        wait_until(lambda: local.is_stale)
        for _ in range(2):
            with pytest.raises(ServiceAway):
                local.refresh()
        assert np.array_equal(local.apply(LOGITS), fitted(2.0).apply(LOGITS))
        assert "no response from" in (local.problem or "")
        (warning,) = said(caplog, logging.WARNING)
        assert warning.startswith("outage@production: keeping version 1, confirmed 20")
        site.start()
        wait_until(lambda: not local.is_stale)
        release(client, "outage", 3.0)
        wait_until(lambda: local.version == 2)
        assert local.problem is None
    assert len(said(caplog, logging.WARNING)) == 1
    assert said(caplog, logging.INFO).count("outage@production: the service is back") == 1


FRESH = """
import logging, sys, time, calibrd, numpy as np
logging.basicConfig(format="%(levelname)s %(message)s")
client = calibrd.Client(sys.argv[1])
began = time.monotonic()
local = client.load("fallback", refresh=0.1)
took = time.monotonic() - began
time.sleep(0.5)
print(took, local.version, local.is_stale, local.apply(np.array([[2.0, 1, 0, 0, 0]])).max())
"""


def kill_after_first_answer(site: Site, client: calibrd.Client) -> None:
    def kill(_: httpx.Response) -> None:
        client._http.event_hooks = {}
        site.kill()

    client._http.event_hooks = {"response": [kill]}


@by_the_clock
def test_a_service_killed_during_a_load_is_replaced_by_the_cache(
    site: Site, client: calibrd.Client, caplog: pytest.LogCaptureFixture
) -> None:
    release(client, "fallback", 2.0, model="sha256:a")
    client.load("fallback", refresh=None)
    release(client, "fallback", 3.0, model="sha256:a")
    kill_after_first_answer(site, client)
    local = client.load("fallback", refresh=None)
    assert (local.version, local.is_stale) == (1, True)
    assert len(said(caplog, logging.WARNING)) == 1

    done = subprocess.run(
        [sys.executable, "-c", FRESH, site.url], capture_output=True, text=True, timeout=60
    )
    took, version, stale, largest = done.stdout.split()
    assert (version, stale) == ("1", "True")
    assert float(took) < 2.5
    assert float(largest) == fitted(2.0).apply(np.array([[2.0, 1, 0, 0, 0]])).max()
    (line,) = done.stderr.splitlines()
    assert line.startswith("WARNING fallback@production: keeping version 1")

    with calibrd.Client(site.url, retry_seconds=0.3) as hasty:
        with pytest.raises(ServiceAway):
            hasty.load("fallback@1")
        with refused("model_mismatch", match="'sha256:b'"):
            hasty.load("fallback", model="sha256:b")
        local = hasty.load("fallback", model="sha256:a", refresh=0.05)
        assert local.is_stale
        before = threading.active_count()
        time.sleep(0.5)  # several unsuccessful polls
        gc.disable()
        try:
            del local
            wait_until(lambda: threading.active_count() < before, seconds=5)
        finally:
            gc.enable()


def test_a_service_killed_during_a_load_without_a_cache_is_waited_for(
    site: Site, client: calibrd.Client
) -> None:
    release(client, "patient", 2.0)
    kill_after_first_answer(site, client)
    again = threading.Timer(0.5, site.start)
    again.start()
    began = time.monotonic()
    local = client.load("patient", refresh=None)
    again.join()
    assert time.monotonic() - began > 0.5
    assert (local.version, local.is_stale) == (1, False)
    assert np.array_equal(local.apply(LOGITS), fitted(2.0).apply(LOGITS))


PAGES = [
    Say(404, {"Content-Type": "text/html"}, b"<h1>default backend</h1>"),
    Say(404, {"X-Request-Id": "of-the-ingress"}, b"<h1>default backend</h1>"),
    Say(200, {"Content-Type": "text/html"}, b"<h1>We will be back soon</h1>"),
    Say(302, {"Location": "https://login.example.org"}),
]


def test_another_server_responds_and_the_cache_is_used(
    client: calibrd.Client, caplog: pytest.LogCaptureFixture
) -> None:
    release(client, "replaced", 2.0)
    with faulty_line(client.url) as line, calibrd.Client(line.url) as behind:
        with behind.load("replaced", refresh=None) as local:
            for page in PAGES:
                line.before = lambda asked, page=page: page
                with behind.load("replaced", refresh=None) as again:
                    assert (again.version, again.is_stale) == (1, True)
                with pytest.raises(calibrd.errors.CalibrdError):
                    local.refresh()
                assert np.array_equal(local.apply(LOGITS), fitted(2.0).apply(LOGITS))
        with pytest.raises(NotCalibrd):
            behind.load("replaced@1")  # of which nothing is on disk
        line.before = lambda asked: None
        release(client, "replaced", 3.0)
        line.after = lambda asked: Say(200, {}, b"damaged") if asked.path.endswith("/map") else None
        with behind.load("replaced", refresh=None) as again:
            assert (again.version, again.is_stale) == (1, True)
            with pytest.raises(MapDamaged):
                again.refresh()
        said_no = b'{"code": "no_such_alias", "detail": "gone"}'
        line.before = lambda asked: Say(404, {}, said_no)
        with refused("no_such_alias"):
            behind.load("replaced")
    assert len(said(caplog, logging.WARNING)) >= len(PAGES) + 1


def test_a_revoked_key_is_reported_and_not_hidden_by_the_cache(
    site: Site, client: calibrd.Client, caplog: pytest.LogCaptureFixture
) -> None:
    admin = client.create_key("admin", ["predict", "fit", "promote", "admin"])
    with calibrd.Client(site.url, admin.token) as owner:
        release(owner, "keyed", 2.0)
        made = owner.create_key("reader", ["predict"])
        with (
            calibrd.Client(site.url, made.token) as reader,
            reader.load("keyed", refresh=0.05) as local,
        ):
            assert made.token.encode() not in pickle.dumps(local)
            assert made.token not in repr(vars(local))
            owner.revoke_key(made.key.id)
            wait_until(lambda: local.is_stale)
            with pytest.raises(Unauthenticated):
                local.refresh()
            assert np.array_equal(local.apply(LOGITS), fitted(2.0).apply(LOGITS))
            (warning,) = said(caplog, logging.WARNING)
            assert "keyed@production: keeping version 1" in warning
            with pytest.raises(Unauthenticated):
                reader.load("keyed")
        # keys do not share cached maps
        with pytest.raises(Unauthenticated):
            client.load("keyed")
