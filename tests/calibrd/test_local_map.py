"""Maps applied in process: downloads, caching, following the alias, refusals."""

from __future__ import annotations

import asyncio
import copy
import gc
import http.server
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from helpers.faulty_http_proxy import faulty_line
from helpers.live_service import Running, wait_until
from helpers.local_maps import LOGITS, fitted, release
from helpers.refusals import refused

import calibrd
from calibrators import CalibrationMap
from calibrators.methods.temperature import TemperatureMap
from calibrd.errors import InputMismatch, MapDamaged, NotFound


def refreshers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "calibrd-refresh"]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    if refreshers():
        gc.collect()
        wait_until(lambda: not refreshers())


def test_a_loaded_map_is_the_one_that_was_promoted(client: calibrd.Client) -> None:
    version = release(client, "loaded", 2.5, model="sha256:abc")
    with client.load("loaded") as local:
        assert np.array_equal(local.apply(LOGITS), fitted(2.5).apply(LOGITS))
        assert np.array_equal(local.transform(LOGITS), fitted(2.5).transform(LOGITS))
        assert np.allclose(local.apply(LOGITS.tolist()), fitted(2.5).apply(LOGITS))
        assert np.allclose(local.apply(LOGITS), client.predict("loaded", LOGITS), atol=1e-7)
        assert (local.reference, local.version, local.model) == (
            "loaded@production",
            1,
            "sha256:abc",
        )
        assert local.sha256 == version.map_sha256 == local.current.sha256
        assert not local.is_stale
        assert local.problem is None
        assert "loaded@production: version 1, temperature, 5 classes, model 'sha256" in repr(local)
        assert refreshers()
    assert np.array_equal(local.apply(LOGITS), fitted(2.5).apply(LOGITS))
    with pytest.raises(RuntimeError, match="load it again"):
        local.refresh()


def test_an_alias_is_followed_and_a_number_is_not(
    client: calibrd.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "calibrd")
    release(client, "moving", 2.0)
    fixed = client.load("moving@1", refresh=0.1)
    assert not refreshers()
    with client.load("moving", refresh=0.1) as local:
        release(client, "moving", 3.0)
        wait_until(lambda: local.version == 2)
        assert np.array_equal(local.apply(LOGITS), fitted(3.0).apply(LOGITS))
        client.rollback("moving")
        wait_until(lambda: local.version == 1)
        assert "moving@production: now version 2, was 1" in caplog.messages
    assert fixed.version == 1
    assert fixed.refresh() is False


def test_refresh_polls_now(client: calibrd.Client) -> None:
    release(client, "now", 2.0)
    local = client.load("now", refresh=None)
    assert local.refresh() is False
    release(client, "now", 3.0)
    assert local.version == 1
    assert local.refresh() is True
    assert (local.version, local.map.temperature) == (2, 3.0)


def test_it_polls_with_the_settings_of_its_client(
    client: calibrd.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(client, "keyless", 2.0)
    with faulty_line(client.url) as line, calibrd.Client(line.url) as keyless:
        monkeypatch.setenv("CALIBRD_API_KEY", "cal_of_somebody_else")
        with keyless.load("keyless", refresh=None) as local:
            local.refresh()
    assert len(line.asked) > 2
    assert not any("authorization" in one.headers for one in line.asked)


def test_apply_uses_one_map_or_the_other(client: calibrd.Client) -> None:
    release(client, "swapped", 2.0)
    release(client, "swapped", 3.0)
    expected = {1: fitted(2.0).apply(LOGITS), 2: fitted(3.0).apply(LOGITS)}
    local = client.load("swapped", refresh=None)
    done = threading.Event()
    odd: list[object] = []

    def apply() -> None:
        while not done.is_set():
            now = local.current
            if not np.array_equal(now.map.apply(LOGITS), expected[now.number]):
                odd.append(now)
            found = local.apply(LOGITS)
            if not any(np.array_equal(found, one) for one in expected.values()):
                odd.append(found)

    threads = [threading.Thread(target=apply) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in (1, 2, 1):
        client.promote("swapped", number, force=True, reason="a test")
        assert local.refresh()
    done.set()
    for thread in threads:
        thread.join()
    assert not odd


def test_a_version_for_another_model_is_refused(client: calibrd.Client) -> None:
    release(client, "modelled", 2.0, model="sha256:a")
    release(client, "any-model", 2.0)
    assert client.load("modelled", model="sha256:a", refresh=None).model == "sha256:a"
    for _ in range(2):
        with refused("model_mismatch", match="modelled@1 was fitted for 'sha256:a'") as caught:
            client.load("modelled", model="sha256:b")
    assert (caught.value.code, caught.value.status) == ("model_mismatch", 409)
    with refused("model_mismatch", match="fitted for an unknown model"):
        client.load("any-model", model="sha256:a")
    assert client.load("any-model", refresh=None).model is None


def test_an_alias_is_not_followed_to_another_model(
    client: calibrd.Client, cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "calibrd")
    release(client, "retrained", 2.0, model="sha256:a")
    with client.load("retrained", model="sha256:a", refresh=0.05) as local:
        release(client, "retrained", 3.0, model="sha256:b")
        wait_until(lambda: local.is_stale)
        with refused("model_mismatch"):
            local.refresh()
        assert (local.version, local.model) == (1, "sha256:a")
        assert "retrained@2 was fitted for 'sha256:b'" in (local.problem or "")
        assert "PROBLEM: retrained@2" in repr(local)
        said = [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert [one.levelno for one in said] == [logging.ERROR]
        (entry,) = cache_dir.glob("*/maps/*.json")
        assert '"number": 1' in entry.read_text()
        client.rollback("retrained")
        wait_until(lambda: not local.is_stale)
    assert "retrained@production: version 1 is confirmed again" in caplog.messages


@pytest.mark.parametrize(
    "other",
    [
        TemperatureMap(k=5, kind="probabilities", temperature=2.0),
        TemperatureMap(k=4, temperature=2.0),
    ],
    ids=["kind", "classes"],
)
def test_an_alias_is_not_followed_to_a_map_of_other_input(
    client: calibrd.Client, caplog: pytest.LogCaptureFixture, other: CalibrationMap
) -> None:
    caplog.set_level(logging.INFO, "calibrd")
    name = f"other-input-{other.kind}"
    release(client, name, 2.0)
    with client.load(name, refresh=0.05) as local:
        version = client.register(name, other)
        client.promote(name, version, force=True, reason="a test")
        wait_until(lambda: local.is_stale)
        for _ in range(2):
            with pytest.raises(InputMismatch, match=f"takes {other.kind} of {other.k} classes"):
                local.refresh()
        assert local.version == 1
        assert np.array_equal(local.apply(LOGITS), fitted(2.0).apply(LOGITS))
        assert "which is in use here, takes logits of 5" in (local.problem or "")
        said = [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert [one.levelno for one in said] == [logging.ERROR]
        assert client.load(name, refresh=None).version == 2
        client.rollback(name)
        wait_until(lambda: not local.is_stale)
        assert local.version == 1


def test_missing_objects_are_refused(client: calibrd.Client) -> None:
    release(client, "refused", 2.0)
    for ref in ("refused@canary", "refused@7", "nobody"):
        with pytest.raises(NotFound):
            client.load(ref)
    with pytest.raises(ValueError, match="name@alias"):
        client.load("Bad Name")
    with pytest.raises(TypeError, match="a str or a Version, got None"):
        client.load(None)  # type: ignore[arg-type]
    for seconds in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="refresh must be"):
            client.load("refused", refresh=seconds)


def test_bytes_damaged_on_the_way_are_refused(
    client: calibrd.Client, service: Running, cache_dir: Path
) -> None:
    release(client, "relayed", 2.0)

    class Relay(http.server.BaseHTTPRequestHandler):
        """A proxy that changes the last byte of every map."""

        def do_GET(self) -> None:
            answer = httpx.get(service.url + self.path)
            content = answer.content
            if self.path.endswith("/map"):
                content = content[:-1] + bytes([content[-1] ^ 1])
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Do not log."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Relay) as relay:
        thread = threading.Thread(target=relay.serve_forever)
        thread.start()
        try:
            with (
                calibrd.Client(f"http://127.0.0.1:{relay.server_port}") as through,
                pytest.raises(MapDamaged, match="relayed@1 arrived with the sha256"),
            ):
                through.load("relayed")
        finally:
            relay.shutdown()
            thread.join()
    assert not list(cache_dir.glob("*/maps/*"))


def test_it_is_pickled_and_copied_without_connection_and_thread(
    service: Running, client: calibrd.Client
) -> None:
    release(client, "pickled", 2.0, model="sha256:a")
    with client.load("pickled") as local:
        data = pickle.dumps(local)
        copies = [pickle.loads(data), copy.copy(local), copy.deepcopy(local)]  # noqa: S301
        assert len(refreshers()) == 1
    assert service.url.encode() not in data
    for one in copies:
        assert np.array_equal(one.apply(LOGITS), fitted(2.0).apply(LOGITS))
        assert (one.reference, one.current.facts) == (local.reference, local.current.facts)
        with pytest.raises(RuntimeError, match="load it again"):
            one.refresh()


def test_the_thread_ends_with_its_map(client: calibrd.Client) -> None:
    release(client, "dropped", 2.0)
    local = client.load("dropped", refresh=1000.0)
    assert refreshers()
    del local
    wait_until(lambda: not refreshers(), seconds=5)


def test_the_same_awaited(service: Running, client: calibrd.Client) -> None:
    release(client, "awaited-map", 2.0)

    async def load() -> calibrd.LocalMap:
        async with calibrd.AsyncClient(service.url) as awaiting:
            return await awaiting.load("awaited-map@production", refresh=0.1)

    with asyncio.run(load()) as local:
        assert np.array_equal(local.apply(LOGITS), fitted(2.0).apply(LOGITS))
        release(client, "awaited-map", 3.0)
        wait_until(lambda: local.version == 2)


FORK = """
import os, sys, time, warnings, calibrd
warnings.simplefilter("ignore", DeprecationWarning)
client = calibrd.Client(sys.argv[1])
local = client.load("forked", refresh=0.1)
lock = local._lock
lock.acquire()  # as if a look were under way, on a thread that the child does not have
child = os.fork()
if child == 0:
    end = time.monotonic() + 20
    while local.version == 1 and time.monotonic() < end:
        time.sleep(0.02)
    os._exit(0 if local.version == 2 and not local.refresh() else 1)
lock.release()
client.promote("forked", 2, force=True, reason="a test")
_, status = os.waitpid(child, 0)
end = time.monotonic() + 20
while local.version == 1 and time.monotonic() < end:
    time.sleep(0.02)
sys.exit(os.waitstatus_to_exitcode(status) or local.version != 2)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_follows_too(service: Running, client: calibrd.Client) -> None:
    release(client, "forked", 2.0)
    client.register("forked", fitted(3.0))
    done = subprocess.run(
        [sys.executable, "-c", FORK, service.url], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
