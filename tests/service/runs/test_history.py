"""In whatever order posts arrive, a run's history is that of a model with ordered posts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import httpx
import pytest
from helpers.live_service import Local
from helpers.run_posts import post
from helpers.training_clients import SETTINGS, history, line, seen

from calibrators.adafocal import AdaFocalState, BinStatistics
from service.access.permissions import Principal
from service.runs.service import SentStatistics
from service.runs.sessions import Opening, open_session
from service.storage.database import Database

pytestmark = pytest.mark.both_backends


@dataclass
class Life:
    """A session in the model: the states after its base and after each of its steps."""

    id: str
    begun: float
    ranks: int
    by_trainer: bool
    states: list[AdaFocalState]
    posts: list[SentStatistics] = field(default_factory=list)
    told: list[bool | None] = field(default_factory=list)

    def go_on(self, chance: random.Random) -> None:
        before = self.states[-1]
        step = before.step + 1
        parts = [seen(chance.randrange(10**6), 50) for _ in range(self.ranks)]
        after = before.update(sum(parts, BinStatistics.empty()))
        if not self.by_trainer:
            self.posts += [
                SentStatistics(self.id, step, rank, one, None) for rank, one in enumerate(parts)
            ]
            self.told.append(None)
        else:
            merged = sum(parts, BinStatistics.empty())
            lies = chance.random() < 0.2
            after = before.update(merged + seen(0)) if lies else after
            self.posts.append(SentStatistics(self.id, step, 0, merged, after))
            self.told.append(not lies)
        self.states.append(after)


def make_lives(chance: random.Random) -> list[Life]:
    """Return sessions that begin at random positions of earlier ones."""
    lives: list[Life] = []
    for number in range(chance.randint(2, 5)):
        base = AdaFocalState.begin(SETTINGS)
        if lives:
            base = chance.choice(chance.choice(lives).states)
        life = Life(
            f"s{number}", 1000.0 + number // 2, chance.randint(1, 3), chance.random() < 0.4, [base]
        )
        for _ in range(chance.randint(0, 4)):
            life.go_on(chance)
        lives.append(life)
    return lives


def expected_line(lives: list[Life]) -> list[tuple[int, str]]:
    """Walk from the newest session to the oldest; each counts up to the base of the next.

    Of sessions that began at the same time, the one opened last is the newest.
    """
    found: list[tuple[int, str]] = []
    end = float("inf")
    ordered = sorted(lives, key=lambda one: one.begun)
    for life in reversed(ordered):
        steps = [state.step for state in life.states[1:]]
        found = [(step, life.id) for step in steps if step <= end] + found
        end = min(end, life.states[0].step)
    return found


def opening(life: Life) -> Opening:
    decides = "trainer" if life.by_trainer else "service"
    return Opening(
        "job",
        "adafocal",
        SETTINGS,
        life.ranks,
        decides,
        3600,
        life.id,
        life.states[0],
        None,
        {},
        "",
        life.begun,
    )


def arrive(database: Database, caller: Principal, lives: list[Life], chance: random.Random) -> None:
    """Send all posts, some of them twice, in any order; sessions open in the order of the list."""
    ready: list[SentStatistics] = []
    coming = list(lives)
    while coming or ready:
        if coming and (not ready or chance.random() < 0.2):
            with database.write() as store:
                open_session(store, caller, opening(coming[0]))
            ready += [sent for sent in coming[0].posts for _ in range(chance.randint(1, 2))]
            coming.pop(0)
        else:
            post(database, caller, "job", ready.pop(chance.randrange(len(ready))))


@pytest.mark.parametrize("seed", range(12))
def test_any_order_gives_the_history_of_the_model(
    tenant: httpx.Client, shared_app: Local, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311
    lives = make_lives(chance)
    chance.shuffle(lives)  # some are reported long after they began
    token = tenant.headers["Authorization"].removeprefix("Bearer ")
    parts = shared_app.app.state.parts
    caller: Principal = parts.keys.authenticate(token)
    arrive(parts.database, caller, lives, chance)
    assert line(tenant, "job") == expected_line(lives)
    for life in lives:
        steps = history(tenant, "job", session=life.id)
        assert [one["gammas"] for one in steps] == [
            state.gammas.tolist() for state in life.states[1:]
        ]
        assert [one["verified"] for one in steps] == life.told
        assert not any(one["partial"] for one in steps)
