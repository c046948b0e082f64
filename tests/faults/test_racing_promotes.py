"""Concurrent promotions of one alias produce a history that is possible sequentially."""

from __future__ import annotations

import functools
import itertools
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
from helpers.both_backends import on_both
from helpers.live_service import Running, every
from helpers.registration import temperature_registration
from helpers.sites import Site

RACERS = 32
VERSIONS = 5
CALIBRATOR = "/v1/calibrators/c"
ALIAS = f"{CALIBRATOR}/aliases/production"
PER_NEW_ALIAS = 4


@dataclass(frozen=True)
class Observation:
    """A response: the revision it contains, when it arrived, and what was requested."""

    began: float
    ended: float
    kind: str
    status: int
    expected: int
    revision: int = 0
    version: int = 0


class Race:
    """The operations of all clients, assigned one at a time."""

    def __init__(self, replicas: list[Running], operations: int) -> None:
        self._replicas = replicas
        self._numbers = iter(range(operations))
        self._lock = threading.Lock()
        self.seen: list[Observation] = []
        self.created: dict[str, list[int]] = {}

    def racer(self, number: int) -> None:
        """Read the alias and try to move it, until all operations are done."""
        dice = random.Random(number)  # noqa: S311
        with self._replicas[0].client() as one, self._replicas[-1].client() as other:
            while (operation := self._next()) is not None:
                client = dice.choice((one, other))
                if operation % 10 == 0:
                    self._create(client, f"new-{operation // 10 // PER_NEW_ALIAS}")
                    continue
                read = self._ask("read", 0, functools.partial(client.get, ALIAS))
                self._move(client, dice, read)

    def _next(self) -> int | None:
        with self._lock:
            return next(self._numbers, None)

    def _create(self, client: httpx.Client, alias: str) -> None:
        said = client.put(
            f"{CALIBRATOR}/aliases/{alias}", json=move_to(1), headers={"If-None-Match": "*"}
        )
        with self._lock:
            self.created.setdefault(alias, []).append(said.status_code)

    def _move(self, client: httpx.Client, dice: random.Random, read: Observation) -> None:
        headers = {"If-Match": f'"{read.revision}"'}
        if dice.random() < 0.3:
            url = f"{ALIAS}/rollback"
            self._ask("rollback", read.revision, lambda: client.post(url, headers=headers))
            return
        body = move_to(dice.choice([n for n in range(1, VERSIONS + 1) if n != read.version]))
        self._ask("move", read.revision, lambda: client.put(ALIAS, json=body, headers=headers))

    def _ask(self, kind: str, expected: int, call: Callable[[], httpx.Response]) -> Observation:
        began = time.monotonic()
        said = call()
        told = said.json() if said.status_code == 200 else {}
        seen = Observation(
            began,
            time.monotonic(),
            kind,
            said.status_code,
            expected,
            told.get("revision", 0),
            told.get("version", 0),
        )
        with self._lock:
            self.seen.append(seen)
        return seen


def move_to(version: int) -> dict[str, object]:
    return {"version": version, "force": True, "reason": "race"}


@on_both
def test_promotes_that_race_are_linearizable(own_site: Site, note: Callable[..., None]) -> None:
    operations = 1000
    apart = own_site.folder / "second" if own_site.is_fleet else None
    replicas = [own_site.replica(), own_site.replica(apart)]
    with replicas[0].client() as client:
        for number in range(VERSIONS):
            body = temperature_registration(1.0 + number)
            assert client.post(f"{CALIBRATOR}/versions", json=body).status_code == 201
        assert client.put(ALIAS, json=move_to(1)).status_code == 200
        race = Race(replicas, operations)
        began = time.monotonic()
        with ThreadPoolExecutor(RACERS) as threads:
            list(threads.map(race.racer, range(RACERS)))
        seconds = time.monotonic() - began
        history = every(client, f"{ALIAS}/history")[::-1]
    winners = check_history(race.seen, history)
    check_times(race.seen)
    for alias, statuses in race.created.items():
        assert sorted(statuses) == [200] + [412] * (len(statuses) - 1), alias
    note(
        f"{RACERS} promotes racing on one alias ({own_site.kind})",
        operations,
        winners=str(winners),
        operations_per_second=operations / seconds,
    )


def check_history(seen: list[Observation], history: list[dict]) -> int:
    """Check that every success has one entry, with the expected revision and the right target."""
    assert [one["revision"] for one in history] == list(range(1, len(history) + 1))
    for before, after in itertools.pairwise(history):
        assert after["from_version"] == before["to_version"]
    tries = [one for one in seen if one.kind != "read"]
    winners = {one.revision: one for one in tries if one.status == 200}
    assert len(winners) == sum(one.status == 200 for one in tries) == len(history) - 1
    standing = stacks(history)
    for revision, winner in winners.items():
        entry = history[revision - 1]
        assert winner.expected == revision - 1
        assert entry["to_version"] == winner.version
        assert entry["rollback"] == (winner.kind == "rollback")
        if entry["rollback"]:
            assert winner.version == standing[revision - 2][-2]
    for loser in (one for one in tries if one.status != 200):
        nothing_left = loser.kind == "rollback" and len(standing[loser.expected - 1]) == 1
        assert loser.status == 412 or (loser.status == 409 and nothing_left), loser
    assert winners
    return len(winners)


def stacks(history: list[dict]) -> list[list[int]]:
    """Return, for each revision, the current version and those that rollbacks can reach."""
    found: list[list[int]] = []
    stack: list[int] = []
    for one in history:
        stack = stack[:-1] if one["rollback"] else [*stack, one["to_version"]]
        found.append(stack)
    return found


def check_times(seen: list[Observation]) -> None:
    """Check that an operation that starts after a revision was read does not an older one."""
    told = [one for one in seen if one.status == 200]
    ended = sorted(told, key=lambda one: one.ended)
    newest, ahead = 0, iter(ended)
    pending = next(ahead, None)
    for one in sorted(told, key=lambda one: one.began):
        while pending is not None and pending.ended < one.began:
            newest = max(newest, pending.revision)
            pending = next(ahead, None)
        assert one.revision >= newest, one
