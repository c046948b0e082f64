"""The service is killed during SDK calls and restarted: nothing is lost or duplicated.

test_local_map_without_service.py covers ``load``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from helpers.faulty_http_proxy import FaultyLine, ReceivedRequest, Say, faulty_line
from helpers.live_service import running, sample

import calibrd

ROWS = 4000
PART_BYTES = 1 << 14


class Mortal:
    """A service that can be killed and restarted on the same port with the same data."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._now = stack.enter_context(running(folder, "--workers", "0"))
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        return self._now.url

    def kill(self) -> None:
        """Kill the service with SIGKILL, and restart it with a worker in the background."""
        self._now.process.kill()
        self._now.process.wait()
        thread = threading.Thread(target=self._start)
        self._threads.append(thread)
        thread.start()

    def _start(self) -> None:
        port = str(urlsplit(self.url).port)
        self._now = self._stack.enter_context(running(self._folder, "--port", port))

    def wait(self) -> None:
        """Wait until the service has restarted."""
        for thread in self._threads:
            thread.join()


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortal]:
    with ExitStack() as stack:
        made = Mortal(tmp_path_factory.mktemp("mortal"), stack)
        yield made
        made.wait()


@pytest.fixture
def line(mortal: Mortal) -> Iterator[FaultyLine]:
    with faulty_line(mortal.url) as made:
        yield made


def test_killed_during_an_upload_and_during_a_fit(mortal: Mortal, line: FaultyLine) -> None:
    with calibrd.Client(line.url, part_bytes=PART_BYTES, retry_seconds=60) as client:
        dataset = upload_over_a_kill(client, mortal, line)
        assert [one.id for one in client.datasets()] == [dataset.id]
        assert dataset.rows == ROWS

        version = fit_over_a_kill(client, mortal, line, dataset)
        (fit,) = client.fits()
        assert fit.versions == [version.number] == [1]
        assert [one.number for one in client.versions("killed")] == [1]
        assert [one.id for one in client.datasets()] == [dataset.id]


def upload_over_a_kill(client: calibrd.Client, mortal: Mortal, line: FaultyLine) -> calibrd.Dataset:
    """Kill the service when four parts have arrived and others are in flight."""
    arrived, lock = [0], threading.Lock()

    def after(asked: ReceivedRequest) -> Say | None:
        with lock:
            if asked.method == "PUT":
                arrived[0] += 1
                if arrived[0] == 4:
                    mortal.kill()
        return None

    line.after = after
    dataset = client.upload(*sample(rows=ROWS), progress=False)
    mortal.wait()
    parts = -(-(dataset.bytes or 0) // PART_BYTES)
    assert parts > 6
    assert line.count("PUT") > parts, "no part was on its way when the service was killed"
    assert line.count("POST", "/commit") == 1
    return dataset


def fit_over_a_kill(
    client: calibrd.Client, mortal: Mortal, line: FaultyLine, dataset: calibrd.Dataset
) -> calibrd.Version:
    """Kill the service when it receives a request for the progress of the fit."""
    looks = [0]

    def before(asked: ReceivedRequest) -> Say | None:
        if "/fits/" in asked.place:
            looks[0] += 1
            if looks[0] == 1:
                mortal.kill()
        return None

    line.before, line.after = before, lambda asked: None
    version = client.fit("killed", dataset=dataset, method="temperature")
    mortal.wait()
    assert line.count("POST", "/fits") == 1
    assert looks[0] > 2, "it was not asked again after it was killed"
    return version
