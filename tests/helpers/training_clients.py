"""Training jobs as the service sees them: they open runs and post statistics over HTTP."""

from __future__ import annotations

import base64
import functools
from typing import Any

import httpx
import numpy as np

from calibrators.adafocal import AdaFocalState, BinStatistics, Settings
from helpers.http_calls import good

SETTINGS = Settings(bins=5, rate=2.0)


@functools.cache
def seen(number: int, rows: int = 200) -> BinStatistics:
    """Return the statistics of an overconfident model's validation pass, different per seed."""
    rng = np.random.default_rng(number)
    confidence = rng.uniform(0.3, 1.0, rows)
    return BinStatistics.from_confidences(confidence, rng.uniform(size=rows) < confidence - 0.2)


def text(statistics: BinStatistics) -> str:
    """Return statistics in the form used in bodies."""
    return base64.b64encode(statistics.to_bytes()).decode()


def document(state: AdaFocalState | None) -> dict[str, Any] | None:
    """Return a state in the form used in bodies."""
    return None if state is None else state.to_dict()


def open_run(client: httpx.Client, name: str, **asked: Any) -> dict[str, Any]:
    """Open a session of a run."""
    if asked.get("kind") != "monitor":
        asked.setdefault("settings", vars(SETTINGS))
    return good(client.post("/v1/runs", json={"name": name, **asked}))


def open_shared(client: httpx.Client, ranks: int = 2, merge_timeout: float = 3600.0) -> None:
    """Open a run ``job`` with a session ``a`` in which the service decides."""
    asked = {"world_size": ranks, "decides": "service", "merge_timeout": merge_timeout}
    open_run(client, "job", session="a", **asked)


def post(
    client: httpx.Client,
    name: str,
    session: str,
    step: int,
    statistics: BinStatistics,
    *,
    rank: int = 0,
    state: AdaFocalState | None = None,
) -> httpx.Response:
    """Post the statistics of a step and a rank."""
    body = {
        "session": session,
        "rank": rank,
        "statistics": text(statistics),
        "state": document(state),
    }
    return client.post(f"/v1/runs/{name}/steps/{step}/stats", json=body)


def state_of(client: httpx.Client, name: str, **asked: Any) -> dict[str, Any]:
    """Return the position of a session of a run."""
    return good(client.get(f"/v1/runs/{name}/state", params=asked))


def history(client: httpx.Client, name: str, **asked: Any) -> list[dict[str, Any]]:
    """Return the first 200 steps of a run."""
    return good(client.get(f"/v1/runs/{name}/history", params={"limit": 200, **asked}))["items"]


def line(client: httpx.Client, name: str) -> list[tuple[int, str]]:
    """Return the steps of a run's history with their sessions."""
    return [(one["step"], one["session"]) for one in history(client, name)]


def trained(client: httpx.Client, name: str, steps: int, **asked: Any) -> AdaFocalState:
    """Post some steps to a session in which the trainer decides; return the final state."""
    opened = open_run(client, name, **asked)
    state = AdaFocalState.from_dict(opened["state"])
    for _ in range(steps):
        statistics = seen(state.step)
        state = state.update(statistics)
        session = opened["session"]["id"]
        answer = good(post(client, name, session, state.step, statistics, state=state))
        assert answer["status"] == "decided"
    return state
