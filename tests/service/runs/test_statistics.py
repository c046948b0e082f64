"""Statistics of ranks: which are refused, which can be merged, and which fit into a body."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from helpers.http_calls import good, refusal
from helpers.training_clients import (
    SETTINGS,
    history,
    open_run,
    open_shared,
    post,
    seen,
    state_of,
    text,
)

from calibrators.adafocal import AdaFocalState, BinStatistics
from calibrators.adafocal.statistics import EXACT_ROWS, LONGEST, CountedRows
from service.runs.schemas import (
    LONGEST_STATISTICS,
    OpenedRunOut,
    OpenRunIn,
    RunStateOut,
    RunStepOut,
    StatisticsIn,
)

pytestmark = pytest.mark.both_backends

BEGIN = AdaFocalState.begin(SETTINGS)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("decides", "change", "status", "code", "words"),
    [
        ("trainer", {"step": 3}, 422, "bad_step", "step must be greater than the base step 3"),
        (
            "service",
            {"step": 10_004},
            422,
            "bad_step",
            "is at step 3, and statistics may be at most",
        ),
        ("trainer", {"rank": 1}, 422, "bad_rank", "rank must be 0 if the trainer decides"),
        ("service", {"rank": 2}, 422, "bad_rank", "less than world_size 2, got 2"),
        ("trainer", {"state": None}, 422, "bad_state", "state is missing"),
        ("trainer", {"state": BEGIN.to_dict()}, 422, "bad_state", "must be for step 4, got 0"),
        ("service", {"state": BEGIN.to_dict()}, 422, "bad_state", "must be null"),
        ("service", {"statistics": "AAAA"}, 422, "bad_statistics", "bad magic bytes"),
        ("service", {"statistics": "ä"}, 422, "bad_base64", "base64-encoded"),
        ("service", {"session": "b"}, 404, "no_such_session", "no session 'b'"),
    ],
)
def test_statistics_that_are_refused(
    tenant: httpx.Client, decides: str, change: dict, status: int, code: str, words: str
) -> None:
    state = BEGIN
    for number in range(3):
        state = state.update(seen(number))
    base = {"state": state.to_dict(), "session": "a"}
    open_run(tenant, "job", decides=decides, world_size=2, **base)
    right = {"session": "a", "statistics": text(seen(1))}
    if decides == "trainer":
        right["state"] = state.update(seen(1)).to_dict()
    change = dict(change)
    url = f"/v1/runs/job/steps/{change.pop('step', 4)}/stats"
    refused = tenant.post(url, json={**right, **change})
    assert refusal(refused) == (status, code)
    assert words in refused.json()["detail"]
    good(tenant.post("/v1/runs/job/steps/4/stats", json=right))


def times(statistics: BinStatistics, often: int) -> BinStatistics:
    """Repeat the same rows until they are counted in cells."""
    spread = CountedRows(statistics.spread.counted().table * often)
    if spread.count <= EXACT_ROWS:
        return sum([statistics] * often, BinStatistics.empty())
    return BinStatistics(spread, statistics.sums * often)


@pytest.mark.one_backend
def test_more_rows_than_can_be_merged_are_refused(tenant: httpx.Client) -> None:
    open_shared(tenant)
    many = times(seen(1, 2), 2**30)
    assert many.rows == 2**31
    good(post(tenant, "job", "a", 1, many))
    more = many + seen(1, 2)
    assert refusal(post(tenant, "job", "a", 1, more, rank=1)) == (413, "too_many_rows")
    assert good(post(tenant, "job", "a", 1, many, rank=1))["status"] == "decided"


@pytest.mark.one_backend
def test_more_nll_than_can_be_merged_is_refused(tenant: httpx.Client) -> None:
    hopeless = BinStatistics.from_log_odds([1.0, 2.0], [True, False], [2.0**14] * 2)
    much = times(hopeless, 2**23)
    assert much.nll_sum == 2**62
    open_shared(tenant, ranks=3, merge_timeout=0.2)
    refused = post(tenant, "job", "a", 1, much)
    assert refusal(refused) == (413, "too_many_rows")
    assert f"3 ranks may have an nll sum of at most {(2**63 - 1) // 3}" in refused.json()["detail"]
    open_run(tenant, "alone", kind="monitor", session="a")
    assert good(post(tenant, "alone", "a", 1, much))["status"] == "decided"


def test_the_example_of_the_document_is_taken(tenant: httpx.Client) -> None:
    opened = tenant.post("/v1/runs", json=OpenRunIn.example())
    assert opened.json()["state"] == OpenedRunOut.example()["state"]
    url = f"/v1/runs/{opened.json()['name']}/steps/1/stats"
    assert good(tenant.post(url, json=StatisticsIn.example()))["status"] == "decided"
    (step,) = history(tenant, opened.json()["name"])
    assert step["verified"] is True
    shown = RunStepOut.example()
    for name in ("metrics", "bins", "reliability"):
        for key, value in shown[name].items():
            assert step[name][key] == approx_all(value), f"{name}.{key}"
    assert state_of(tenant, opened.json()["name"])["state"] == RunStateOut.example()["state"]


def approx_all(value: Any) -> Any:
    """Return an example's values rounded to three places; null stays null."""
    if isinstance(value, list):
        return [approx_all(one) for one in value]
    return value if value is None else pytest.approx(value, abs=5e-4)


def test_rows_that_are_hard_to_compress_fit_into_a_body(tenant: httpx.Client) -> None:
    rng = np.random.default_rng(0)
    odds, correct = rng.uniform(-2, 30, EXACT_ROWS), rng.uniform(size=EXACT_ROWS) < 0.5
    rows = BinStatistics.from_log_odds(odds, correct, np.ones(EXACT_ROWS))
    assert len(text(rows)) > 200_000
    open_run(tenant, "rows", kind="monitor", session="a")
    assert good(post(tenant, "rows", "a", 1, rows))["status"] == "decided"
    assert history(tenant, "rows")[0]["metrics"]["rows"] == EXACT_ROWS


def test_no_statistics_are_longer_than_a_body_may_be() -> None:
    deflated_at_worst = LONGEST + LONGEST // 1000 + 100
    assert 4 * (deflated_at_worst // 3 + 1) < LONGEST_STATISTICS


@pytest.mark.one_backend
def test_as_many_rows_as_there_are_pixels_fit_into_a_body(tenant: httpx.Client) -> None:
    """Cells that all contain large counts are hard to compress."""
    rng = np.random.default_rng(0)
    many = BinStatistics.empty()
    for often in (20_011, 1_009, 61, 1):
        confidence = 1 / (1 + np.exp(-rng.uniform(-12, 20, 100_000)))
        some = BinStatistics.from_confidences(confidence, rng.uniform(size=100_000) < confidence)
        many += times(some, often)
    assert len(text(many)) > 100_000
    open_run(tenant, "pixels", kind="monitor", session="a")
    assert good(post(tenant, "pixels", "a", 1, many))["status"] == "decided"
    assert history(tenant, "pixels")[0]["metrics"]["rows"] == many.rows
