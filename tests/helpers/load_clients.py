"""Clients that promote, register, upload, fit and predict, and record what was acknowledged."""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from helpers.live_service import NPZ, Running, npz, sample
from helpers.registration import temperature_registration

CALIBRATOR = "/v1/calibrators/loaded"
ALIAS = f"{CALIBRATOR}/aliases/production"
PAUSE = 0.05


@dataclass
class Acknowledged:
    """Everything that the service has acknowledged and must therefore have stored."""

    moves: dict[int, int] = field(default_factory=dict)  # version by revision
    versions: dict[int, str] = field(default_factory=dict)  # SHA-256 of the map by number
    datasets: dict[str, str] = field(default_factory=dict)  # SHA-256 by id
    fits: dict[str, str] = field(default_factory=dict)  # id by Idempotency-Key
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    predicted: list[int] = field(default_factory=list)
    slowest_predict: float = 0.0


class Load:
    """Runs one thread for each kind of call until the end of the block."""

    def __init__(self, replicas: list[Running]) -> None:
        self.told = Acknowledged()
        self.errors: list[Exception] = []
        self._ended = threading.Event()
        self._clients = [replica.client() for replica in replicas]
        self._numbers = itertools.count(1)
        self._dataset = self._prepare()
        kinds = (self._promote, self._register, self._upload, self._fit, self._predict)
        self._threads = [threading.Thread(target=self._repeat, args=(one,)) for one in kinds]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(120)
        for client in self._clients:
            client.close()
        assert not any(thread.is_alive() for thread in self._threads)
        assert not self.errors, self.errors

    def wait_for_more(self, seconds: float) -> None:
        """Wait until every kind of call has been acknowledged once more."""
        before = self._acknowledged()
        deadline = time.monotonic() + seconds
        while any(now <= then for now, then in zip(self._acknowledged(), before, strict=True)):
            assert time.monotonic() < deadline, (before, self._acknowledged(), self.told.statuses)
            assert not self.errors, self.errors
            time.sleep(0.05)

    def _acknowledged(self) -> list[int]:
        told = self.told
        return [len(one) for one in (told.moves, told.versions, told.datasets, told.fits)]

    def _prepare(self) -> str:
        """Create two versions; promote the first and load it into every replica."""
        client = self._clients[0]
        for temperature in (2.0, 3.0):
            made = client.post(
                f"{CALIBRATOR}/versions", json=temperature_registration(temperature, k=5)
            )
            assert made.status_code == 201, made.text
        body = {"version": 1, "force": True, "reason": "load"}
        assert client.put(ALIAS, json=body).status_code == 200
        for one in self._clients:
            for ref in ("production", "2"):
                assert one.get(f"{CALIBRATOR}@{ref}/predict?logits=3,1,0,0,0").status_code == 200
        made = client.post("/v1/datasets", content=npz(*sample(300)), headers=NPZ)
        id: str = made.json()["id"]
        return id

    def _repeat(self, call: Callable[[httpx.Client], None]) -> None:
        try:
            for client in itertools.cycle(self._clients):
                if self._ended.wait(PAUSE):
                    return
                call(client)
        except Exception as error:  # noqa: BLE001 - told by the thread that waits
            self.errors.append(error)

    def _note(self, kind: str, said: httpx.Response) -> bool:
        self.told.statuses[kind, said.status_code] += 1
        assert said.is_success or said.status_code == 503, (kind, said.status_code, said.text)
        return said.is_success

    def _promote(self, client: httpx.Client) -> None:
        there = client.get(ALIAS)
        if not self._note("read", there):
            return
        body = {"version": 3 - there.json()["version"], "force": True, "reason": "load"}
        moved = client.put(ALIAS, json=body, headers={"If-Match": there.headers["ETag"]})
        if self._note("promote", moved):
            self.told.moves[moved.json()["revision"]] = moved.json()["version"]

    def _register(self, client: httpx.Client) -> None:
        body = temperature_registration(2.0 + next(self._numbers), k=5)
        made = client.post(f"{CALIBRATOR}/versions", json=body)
        if self._note("register", made):
            self.told.versions[made.json()["number"]] = made.json()["map_sha256"]

    def _upload(self, client: httpx.Client) -> None:
        body = npz(*sample(100, seed=next(self._numbers)))
        made = client.post("/v1/datasets", content=body, headers=NPZ)
        if self._note("upload", made):
            assert made.json()["sha256"] == hashlib.sha256(body).hexdigest()
            self.told.datasets[made.json()["id"]] = made.json()["sha256"]

    def _fit(self, client: httpx.Client) -> None:
        """Start a fit, and repeat the request with its key until it is acknowledged."""
        key = f"fit-{next(self._numbers)}"
        order = {"dataset": self._dataset, "method": "temperature", "description": key}
        for one in itertools.cycle((client, *self._clients)):
            made = one.post(
                "/v1/calibrators/fitted/fits", json=order, headers={"Idempotency-Key": key}
            )
            if self._note("fit", made):
                self.told.fits[key] = made.json()["id"]
                return
            time.sleep(0.3)

    def _predict(self, client: httpx.Client) -> None:
        for ref in ("production", "2"):
            began = time.monotonic()
            said = client.get(f"{CALIBRATOR}@{ref}/predict?logits=3,1,0,0,0")
            self.told.predicted.append(said.status_code)
            took = time.monotonic() - began
            self.told.slowest_predict = max(self.told.slowest_predict, took)
