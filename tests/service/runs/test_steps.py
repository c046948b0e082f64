"""Statistics are accepted once per step and rank, in any order; steps are decided once."""

from __future__ import annotations

import time
import zlib
from typing import Any

import httpx
import pytest
from helpers.http_calls import good, refusal
from helpers.live_service import Local, wait_until
from helpers.training_clients import SETTINGS, history, open_run, open_shared, post, seen, state_of
from sqlalchemy import event, select, update
from structlog.testing import capture_logs

from calibrators.adafocal import AdaFocalState, BinStatistics
from service.runs import service
from service.runs.repository import AT_ONCE
from service.runs.watcher import Merges
from service.storage.run_tables import run_sessions, run_statistics

pytestmark = pytest.mark.both_backends

BEGIN = AdaFocalState.begin(SETTINGS)
SOON = 0.2


def test_the_service_merges_all_ranks_and_all_get_the_same(tenant: httpx.Client) -> None:
    open_shared(tenant, ranks=3)
    for rank in (2, 0):
        waiting = good(post(tenant, "job", "a", 1, seen(rank), rank=rank))
        assert (waiting["status"], waiting["state"]) == ("waiting", None)
    assert state_of(tenant, "job")["step"] == 0
    decided = good(post(tenant, "job", "a", 1, seen(1), rank=1))
    expected = BEGIN.update(seen(0) + seen(1) + seen(2)).to_dict()
    assert (decided["status"], decided["ranks"]) == ("decided", [0, 1, 2])
    assert decided["state"] == state_of(tenant, "job")["state"] == expected
    again = good(post(tenant, "job", "a", 1, seen(2), rank=2))
    assert again == decided
    (step,) = history(tenant, "job")
    assert (step["partial"], step["verified"], step["ranks"]) == (False, None, [0, 1, 2])
    assert step["metrics"]["rows"] == 600


def test_many_ranks_are_merged_a_few_at_a_time(tenant: httpx.Client) -> None:
    ranks = 2 * AT_ONCE + 1
    open_shared(tenant, ranks=ranks)
    parts = [seen(rank, 10) for rank in range(ranks)]
    for rank, part in enumerate(parts):
        answer = good(post(tenant, "job", "a", 1, part, rank=rank))
    expected = BEGIN.update(sum(parts, BinStatistics.empty()))
    assert (answer["status"], answer["state"]) == ("decided", expected.to_dict())


def test_steps_may_come_in_any_order(tenant: httpx.Client) -> None:
    open_run(tenant, "job", session="a")
    states = [BEGIN]
    for number in range(1, 5):
        states.append(states[-1].update(seen(number)))
    for step in (4, 2, 3):
        answer = good(post(tenant, "job", "a", step, seen(step), state=states[step]))
        assert answer["status"] == "waiting"
        assert history(tenant, "job") == []
    answer = good(post(tenant, "job", "a", 1, seen(1), state=states[1]))
    assert answer["state"] == states[1].to_dict()
    steps = history(tenant, "job")
    assert [one["step"] for one in steps] == [1, 2, 3, 4]
    assert all(one["verified"] for one in steps)


def test_decisions_of_the_trainer_are_recorded_and_verified(tenant: httpx.Client) -> None:
    open_run(tenant, "job", session="a")
    honest, other = BEGIN.update(seen(1)), BEGIN.update(seen(2))
    assert good(post(tenant, "job", "a", 1, seen(1), state=other))["state"] == other.to_dict()
    # verified against the state that training used, not the one it should have used
    good(post(tenant, "job", "a", 2, seen(3), state=other.update(seen(3))))
    good(post(tenant, "job", "a", 3, seen(4), state=honest.update(seen(3)).update(seen(4))))
    assert [one["verified"] for one in history(tenant, "job")] == [False, True, False]
    assert state_of(tenant, "job")["verified"] is False


def test_the_last_bit_of_a_gamma_is_not_a_mismatch(tenant: httpx.Client) -> None:
    open_run(tenant, "job", session="a")
    told = BEGIN.update(seen(1)).to_dict()
    told["gammas"] = [gamma * (1 + 1e-13) for gamma in told["gammas"]]
    claimed = AdaFocalState.from_dict(told)
    assert good(post(tenant, "job", "a", 1, seen(1), state=claimed))["state"] == told
    assert history(tenant, "job")[0]["verified"] is True


def test_other_statistics_of_the_same_rank_are_refused(tenant: httpx.Client) -> None:
    open_shared(tenant)
    first = good(post(tenant, "job", "a", 1, seen(1)))
    refused = post(tenant, "job", "a", 1, seen(2))
    assert refusal(refused) == (409, "statistics_differ")
    assert "rank 0 has already sent different statistics for step 1" in refused.json()["detail"]
    # the same numbers, packed in another way
    planes = zlib.decompress(seen(1).to_bytes()[4:])
    assert BinStatistics.from_bytes(b"CBS1" + zlib.compress(planes, 1)) == seen(1)
    assert good(post(tenant, "job", "a", 1, seen(1))) == first
    good(post(tenant, "job", "a", 1, seen(3), rank=1))
    assert refusal(post(tenant, "job", "a", 1, seen(2))) == (409, "statistics_differ")


def test_the_same_statistics_with_another_state_are_others(tenant: httpx.Client) -> None:
    open_run(tenant, "job", session="a")
    good(post(tenant, "job", "a", 1, seen(1), state=BEGIN.update(seen(1))))
    refused = post(tenant, "job", "a", 1, seen(1), state=BEGIN.update(seen(2)))
    assert refusal(refused) == (409, "statistics_differ")


def test_waiting_for_a_missing_rank_ends_at_the_merge_timeout(tenant: httpx.Client) -> None:
    open_shared(tenant, ranks=3, merge_timeout=SOON)
    good(post(tenant, "job", "a", 1, seen(0), rank=0))
    good(post(tenant, "job", "a", 1, seen(2), rank=2))
    time.sleep(SOON)
    found = state_of(tenant, "job")
    expected = BEGIN.update(seen(0) + seen(2)).to_dict()
    assert (found["step"], found["partial"], found["state"]) == (1, True, expected)
    late = good(post(tenant, "job", "a", 1, seen(1), rank=1))
    assert (late["late"], late["status"], late["state"]) == (True, "decided", expected)
    assert late["ranks"] == [0, 1, 2]
    assert good(post(tenant, "job", "a", 1, seen(1), rank=1)) == late
    (step,) = history(tenant, "job")
    assert (step["partial"], step["ranks"], step["world_size"]) == (True, [0, 2], 3)
    assert step["metrics"]["rows"] == 400


def test_a_post_decides_overdue_steps(tenant: httpx.Client) -> None:
    open_shared(tenant, merge_timeout=SOON)
    good(post(tenant, "job", "a", 1, seen(1)))
    time.sleep(SOON)
    good(post(tenant, "job", "a", 2, seen(2)))
    decided = history(tenant, "job")  # on a busy machine the second is overdue by now, too
    assert decided[-1]["step"] == 1
    assert decided[-1]["partial"]


def test_workers_decide_steps_that_no_one_polls(tenant: httpx.Client, shared_app: Local) -> None:
    open_shared(tenant, merge_timeout=SOON)
    good(post(tenant, "job", "a", 1, seen(1)))
    database = shared_app.app.state.parts.database
    assert history(tenant, "job") == []
    merges = Merges(database)
    (step,) = wait_until(lambda: merges.start_due() == 0 and history(tenant, "job"))
    assert (step["ranks"], step["partial"]) == ([0], True)


def test_many_steps_that_waited_for_the_first_are_decided_in_turns(
    tenant: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_AT_ONCE", 3)
    open_run(tenant, "watch", kind="monitor", session="a")
    for step in range(2, 9):
        assert good(post(tenant, "watch", "a", step, seen(1)))["status"] == "waiting"
    good(post(tenant, "watch", "a", 1, seen(1)))
    assert len(history(tenant, "watch")) == 3
    assert [state_of(tenant, "watch")["step"] for _ in range(3)] == [6, 8, 8]


def test_ranks_without_rows_change_nothing(tenant: httpx.Client) -> None:
    open_shared(tenant)
    empty = BinStatistics.empty()
    good(post(tenant, "job", "a", 1, empty, rank=0))
    good(post(tenant, "job", "a", 1, seen(1), rank=1))
    first = BEGIN.update(seen(1))
    assert state_of(tenant, "job")["state"] == first.to_dict()
    good(post(tenant, "job", "a", 2, empty, rank=0))
    decided = good(post(tenant, "job", "a", 2, empty, rank=1))
    assert decided["state"] == {**first.to_dict(), "step": 2}
    nothing = history(tenant, "job")[1]
    assert (nothing["metrics"]["rows"], nothing["metrics"]["ece"]) == (0, None)
    assert (nothing["bins"], nothing["reliability"]) == (None, None)


def test_an_undecidable_session_delays_no_other(tenant: httpx.Client, shared_app: Local) -> None:
    database = shared_app.app.state.parts.database
    asked = {"kind": "monitor", "world_size": 2, "decides": "service", "merge_timeout": SOON}
    for name in ("one", "two", "three"):
        open_run(tenant, name, session=name, **asked)
        good(post(tenant, name, name, 1, seen(1)))
    with database.write() as store:
        damaged = select(run_sessions.c.run).where(run_sessions.c.id == "two").scalar_subquery()
        wrong = update(run_statistics).where(run_statistics.c.run == damaged)
        store.session.execute(wrong.values(statistics=b"CBS1"))
    time.sleep(SOON)
    with capture_logs() as logs:
        merges, names = Merges(database), ("one", "three")
        wait_until(lambda: merges.start_due() == 0 and all(history(tenant, one) for one in names))
    assert "step_not_decided" in [one["event"] for one in logs]
    for name, step in (("one", 1), ("two", 0), ("three", 1)):
        assert state_of(tenant, name)["step"] == step
    # it waits in vain and then gets a response
    assert state_of(tenant, "two", after=0, wait=0.3)["step"] == 0


def test_bytes_of_ranks_are_read_once_and_together(tenant: httpx.Client, shared_app: Local) -> None:
    read: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        columns = statement.partition("FROM")[0]
        is_length = "length(run_statistics.statistics)" in columns  # this reads no bytes
        if (
            columns.startswith("SELECT")
            and "run_statistics.statistics" in columns
            and not is_length
        ):
            read.append(statement)

    open_shared(tenant, ranks=8)
    engine = shared_app.app.state.parts.database.engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        for rank in range(7):
            good(post(tenant, "job", "a", 1, seen(rank), rank=rank))
        assert read == []
        assert good(post(tenant, "job", "a", 1, seen(7), rank=7))["status"] == "decided"
        assert len(read) == 1
    finally:
        event.remove(engine, "before_cursor_execute", note)
