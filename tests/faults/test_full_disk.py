"""A full disk: writes are refused with 507, reads continue, and nothing is damaged."""

from __future__ import annotations

import os
import re
import resource
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from helpers.live_service import NPZ, Running, every, npz, running, sample, wait_until
from helpers.load_clients import ALIAS, CALIBRATOR
from helpers.registration import temperature_registration

MEGABYTES = 64
CHUNK = 1 << 20
STEPS = 800  # a second of a core
FIT_SECONDS = 4.0
RETRIES = re.compile('"no_space".*"store_unavailable"|"store_unavailable".*"no_space"')
FINAL = ("succeeded", "failed", "cancelled")


class SmallDisk:
    """A separate file system that is filled to the last block."""

    name = "a small tmpfs"
    is_seen = True  # set by the check of free space

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"
        size = f"size={MEGABYTES}m"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "calibrd-tests", folder], check=True)

    def fill(self, _service: Running) -> None:
        """Fill the remaining space."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (CHUNK, 4096, 1):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError:
                    continue

    def free(self, _service: Running) -> None:
        """Free the space again."""
        self._filler.unlink()

    def wait_for_the_end_of_a_fit(self, service: Running) -> None:
        """Wait until the worker reports that the result cannot be written."""
        wait_until(lambda: RETRIES.search(service.log.read_text()), seconds=60)

    def end(self) -> None:
        """Unmount the disk."""
        subprocess.run(["umount", "--lazy", self.folder], check=True)


class FileLimit:
    """A limit that prevents every process of the service from writing to files."""

    name = "a file-size limit"
    is_seen = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, service: Running) -> None:
        """Forbid writing."""
        self._limit(service, 0)

    def free(self, service: Running) -> None:
        """Allow writing again."""
        self._limit(service, resource.RLIM_INFINITY)

    def wait_for_the_end_of_a_fit(self, _service: Running) -> None:
        """Wait for a fixed time, because the log cannot be written either."""
        time.sleep(FIT_SECONDS)

    def end(self) -> None:
        """Do nothing: there is nothing to clean up."""

    def _limit(self, service: Running, size: int) -> None:
        parent = psutil.Process(service.process.pid)
        for one in (parent, *parent.children(recursive=True)):
            resource.prlimit(one.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def ways() -> list[type[SmallDisk | FileLimit]]:
    """Return a small disk and the file limit; only root may mount a disk."""
    return [SmallDisk, FileLimit] if os.geteuid() == 0 else [FileLimit]


@pytest.fixture(params=ways(), ids=lambda way: way.__name__)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk | FileLimit]:
    folder = tmp_path / "disk"
    folder.mkdir()
    made = request.param(folder)
    yield made
    made.end()


def test_a_full_disk_refuses_writes_and_serves_reads(
    disk: SmallDisk | FileLimit, tmp_path: Path, note: Callable[..., None]
) -> None:
    data_dir = disk.folder / "data"
    log = tmp_path / "serve.log"
    with running(data_dir, log=log) as service, service.client() as client:
        dataset = prepare(client)
        ordered = order(client, dataset, steps=STEPS)
        answers = refused(client, dataset, lambda: disk.fill(service))
        check_served(client)
        if disk.is_seen:
            ready = wait_until(lambda: not_ready(client))
            assert "full" in ready["blobs"]
        disk.wait_for_the_end_of_a_fit(service)
        assert client.get(f"/v1/fits/{ordered}").json()["status"] == "running"
        disk.free(service)
        wait_until(lambda: client.get("/readyz").status_code == 200, seconds=60)
        ended = finished(client, ordered)
        check_works_again(client, dataset)
        check_versions(client)
    check_database(data_dir)
    note(f"disk full: {disk.name}", 1, refused=str(len(answers)), running_fit=ended["status"])


def not_ready(client: httpx.Client) -> dict[str, Any] | None:
    said = client.get("/readyz")
    return said.json() if said.status_code == 503 else None


def prepare(client: httpx.Client) -> str:
    """Create a dataset, two versions, and an alias that is served from memory."""
    made = client.post("/v1/datasets", content=npz(*sample(2000)), headers=NPZ)
    assert made.status_code == 201, made.text
    for temperature in (2.0, 3.0):
        said = client.post(
            f"{CALIBRATOR}/versions", json=temperature_registration(temperature, k=5)
        )
        assert said.status_code == 201, said.text
    assert client.put(ALIAS, json=move_to(1)).status_code == 200
    assert predict(client).status_code == 200
    id: str = made.json()["id"]
    return id


def move_to(version: int) -> dict[str, Any]:
    return {"version": version, "force": True, "reason": "full"}


def predict(client: httpx.Client) -> httpx.Response:
    return client.get(f"{CALIBRATOR}@production/predict?logits=3,1,0,0,0")


def order(client: httpx.Client, dataset: str, steps: int) -> str:
    """Start a fit and wait until it is running."""
    asked = {"dataset": dataset, "method": "smart", "params": {"steps": steps}}
    made = client.post("/v1/calibrators/fitted/fits", json=asked)
    assert made.status_code == 202, made.text
    id: str = made.json()["id"]
    wait_until(lambda: client.get(f"/v1/fits/{id}").json()["status"] == "running", seconds=60)
    return id


def refused(client: httpx.Client, dataset: str, fill: Callable[[], None]) -> list[httpx.Response]:
    """Check that every kind of write is refused for lack of space."""
    big = npz(*sample(4000, seed=9))
    plain = {"dataset": dataset, "method": "temperature"}
    fits = "/v1/calibrators/fitted/fits"
    calls: list[Callable[[], httpx.Response]] = [
        lambda: client.post("/v1/datasets", content=big, headers=NPZ),
        lambda: client.post("/v1/datasets?upload=parts"),
        lambda: client.post(f"{fits}?method=temperature", content=big, headers=NPZ),
        lambda: client.post(fits, json=plain),
        lambda: client.put(ALIAS, json=move_to(2)),
        lambda: client.post(f"{CALIBRATOR}/versions", json=temperature_registration(4.0, k=5)),
    ]
    answers = []
    for call in calls * 2:
        fill()  # also after refused writes have released their space
        said = call()
        assert (said.status_code, said.json()["code"]) == (507, "no_space"), (
            said.request.url,
            said.text,
        )
        answers.append(said)
    return answers


def check_served(client: httpx.Client) -> None:
    """Check that reads and predict calls continue."""
    for path in (ALIAS, f"{ALIAS}/history", "/v1/datasets", "/v1/fits", f"{CALIBRATOR}/versions/2"):
        assert client.get(path).status_code == 200, path
    assert client.get(ALIAS).json()["version"] == 1
    assert client.get(f"{CALIBRATOR}/versions/2/map").status_code == 200
    assert predict(client).status_code == 200
    said = client.get(f"{CALIBRATOR}@2/predict?logits=3,1,0,0,0")  # from the disk
    assert said.status_code == 200


def finished(client: httpx.Client, id: str) -> dict[str, Any]:
    """Return the fit that was running when the disk became full, after it has ended."""
    wait_until(lambda: client.get(f"/v1/fits/{id}").json()["status"] in FINAL, seconds=90)
    fit: dict[str, Any] = client.get(f"/v1/fits/{id}").json()
    if fit["status"] == "succeeded":
        assert len(fit["versions"]) == 1
    else:
        assert fit["error"]["code"] == "no_space", fit
    named = [one for one in every(client, "/v1/calibrators/fitted/versions") if one["fit"] == id]
    assert [one["number"] for one in named] == fit["versions"]
    return fit


def check_works_again(client: httpx.Client, dataset: str) -> None:
    """Check that everything that was refused now succeeds."""
    body = npz(*sample(4000, seed=9))
    assert client.post("/v1/datasets", content=body, headers=NPZ).status_code == 201
    assert client.put(ALIAS, json=move_to(2)).status_code == 200
    made = client.post(
        "/v1/calibrators/fitted/fits",
        json={"dataset": dataset, "method": "temperature"},
        headers={"Prefer": "wait=60"},
    )
    assert made.json()["status"] == "succeeded", made.text
    assert predict(client).status_code == 200


def check_versions(client: httpx.Client) -> None:
    """Check that the map of every version can be read and is the one that was written."""
    for name in ("loaded", "fitted"):
        for one in every(client, f"/v1/calibrators/{name}/versions"):
            said = client.get(f"/v1/calibrators/{name}/versions/{one['number']}/map")
            assert said.status_code == 200, said.text


def check_database(data_dir: Path) -> None:
    with sqlite3.connect(data_dir / "calibrd.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    assert not list((data_dir / "uploads").iterdir())
