"""A backup of a service under load, restored elsewhere, has all data acknowledged before it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from helpers.live_service import NPZ, every, npz, running, sample, wait_until

from service.cli.arguments import run

NAME = "loaded"
URL = f"/v1/calibrators/{NAME}"
FINAL = ("succeeded", "failed", "cancelled")
ROWS = {"logits": sample(20)[0].tolist()}
LOAD_SECONDS = 1.0


def fit(client: httpx.Client, seed: int, wait: int = 0, **query: Any) -> dict[str, Any]:
    """Start a fit on new data sent in the same call."""
    answer = client.post(
        f"{URL}/fits",
        params={"method": "temperature"} | query,
        content=npz(*sample(800, seed=seed)),
        headers=NPZ | ({"Prefer": f"wait={wait}"} if wait else {}),
    )
    assert answer.is_success, answer.text
    done: dict[str, Any] = answer.json()
    return done


def state(client: httpx.Client, fit: str) -> tuple[str, int]:
    found = client.get(f"/v1/fits/{fit}").json()
    return found["status"], found["attempt"]


def promote(client: httpx.Client, version: int) -> None:
    move = {"version": version, "force": True, "reason": "load"}
    assert client.put(f"{URL}/aliases/production", json=move).is_success


def upload_and_delete(client: httpx.Client, seed: int) -> None:
    """Upload and delete a dataset, and commit an upload in parts."""
    body = npz(*sample(300, seed=seed))
    gone = client.post("/v1/datasets", content=body, headers=NPZ).json()["id"]
    upload = client.post("/v1/datasets?upload=parts").json()["id"]
    other = npz(*sample(310, seed=seed))
    client.put(f"/v1/datasets/{upload}/parts/1", content=other)
    assert client.delete(f"/v1/datasets/{gone}").status_code == 204
    assert client.post(f"/v1/datasets/{upload}/commit").is_success


@contextmanager
def load(*tasks: Callable[[int], object]) -> Iterator[list[int]]:
    """Repeat each task on its own thread until the block ends; count the repetitions."""
    ended, done, failures = threading.Event(), [0] * len(tasks), []

    def repeat(place: int, task: Callable[[int], object]) -> None:
        try:
            for seed in itertools.count(1000 * (place + 1)):
                if ended.is_set():
                    return
                task(seed)
                done[place] += 1
        except Exception as error:  # noqa: BLE001 - raised below
            failures.append(error)

    threads = [threading.Thread(target=repeat, args=pair) for pair in enumerate(tasks)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)
    assert not failures, failures


def predictions(client: httpx.Client, numbers: list[int]) -> dict[int, bytes]:
    answers = {n: client.post(f"{URL}@{n}/predict", json=ROWS) for n in numbers}
    assert {answer.status_code for answer in answers.values()} == {200}
    return {n: answer.content for n, answer in answers.items()}


def command(*arguments: object) -> None:
    """Run a command in this process, which is not a process of the service."""
    assert run([*map(str, arguments)]) == 0


def test_a_hot_backup_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    backup = tmp_path / "backup.tar"
    with running(tmp_path / "old", CALIBRD_WORKERS="2") as old, old.client() as client:
        made = client.post("/v1/keys", json={"name": "first", "scopes": ["admin"]}).json()
        client.headers["Authorization"] = f"Bearer {made['token']}"
        assert fit(client, 1, wait=60, method="smart")["status"] == "succeeded"
        assert fit(client, 2, wait=60)["status"] == "succeeded"
        endless = fit(client, 3, method="smart", params='{"steps": 100000}')["id"]
        wait_until(lambda: state(client, endless) == ("running", 1))
        with load(
            lambda seed: fit(client, seed, delete_after_fit="true") and time.sleep(0.3),
            lambda seed: upload_and_delete(client, seed),
            lambda seed: promote(client, 1 + seed % 2),
            lambda _: predictions(client, [1, 2]),
        ) as done:
            time.sleep(LOAD_SECONDS)
            versions = every(client, f"{URL}/versions")
            history = every(client, f"{URL}/aliases/production/history")
            fits = every(client, "/v1/fits")
            before, end = done.copy(), time.monotonic() + 60
            # a backup is quick: repeat it until all kinds of load have run during one
            while any(after == earlier for after, earlier in zip(done, before, strict=True)):
                command("backup", backup, "--force", "--data-dir", tmp_path / "old")
                assert time.monotonic() < end, (before, done)
        numbers = [version["number"] for version in versions]
        expected = predictions(client, numbers)

    command("restore", backup, "--data-dir", tmp_path / "new")
    with running(tmp_path / "new") as new, new.client(made["token"]) as client:
        assert predictions(client, numbers) == expected
        there = every(client, f"{URL}/versions")
        assert [one for one in there if one["number"] in numbers] == versions
        moves = every(client, f"{URL}/aliases/production/history")
        assert moves[-len(history) :] == history
        alias = client.get(f"{URL}/aliases/production").json()
        assert alias["version"] == moves[0]["to_version"]
        known = {one["id"]: one for one in every(client, "/v1/fits")}
        assert {one["id"] for one in fits} <= known.keys()
        # fits of missing workers are taken over, and queued fits continue
        wait_until(lambda: state(client, endless) == ("running", 2), 60)
        assert client.delete(f"/v1/fits/{endless}").is_success
        wait_until(lambda: all(one["status"] in FINAL for one in every(client, "/v1/fits")))
        ends = {one["id"]: one["status"] for one in every(client, "/v1/fits")}
        assert ends.pop(endless) == "cancelled"
        assert set(ends.values()) == {"succeeded"}
        assert fit(client, 4, wait=60)["status"] == "succeeded"
        assert client.get("/v1/calibrators", headers={"Authorization": ""}).status_code == 401
