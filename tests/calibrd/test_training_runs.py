"""AdaFocal and Monitor against the real service: recorded runs, and continuing a run."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.faulty_http_proxy import FaultyLine, Say, first, lose
from helpers.live_service import Running, wait_until
from helpers.refusals import refused
from helpers.training_passes import line_of, passes, stepped

import calibrd
from calibrators.adafocal import BinStatistics
from calibrd.errors import NotCalibrd, Unauthenticated
from calibrd.training import AdaFocal, Monitor


def test_a_run_continues_where_it_was(client: calibrd.Client) -> None:
    first, second, third, fourth = passes(4)
    with AdaFocal(client, run="goes-on", rate=4.0) as before:
        stepped(before, first, second)
    with AdaFocal(client.url, run="goes-on", rate=4.0) as after:
        assert after.state == before.state
        stepped(after, third)
    history = client.run_history("goes-on")
    assert line_of(client, "goes-on") == [1, 2, 3]
    assert np.array_equal(history[-1].gammas, after.state.gammas)
    assert len({step.session for step in history}) == 2
    with AdaFocal(client, run="goes-on", rate=4.0, fresh=True) as anew:
        assert anew.state.step == 0
        stepped(anew, fourth)
    assert line_of(client, "goes-on") == [1]


def test_a_run_without_a_bound_on_gamma(client: calibrd.Client) -> None:
    given = passes(3)
    with AdaFocal(client, run="unbound", rate=300.0, gamma_max=math.inf) as job:
        stepped(job, *given)
    assert line_of(client, "unbound") == [1, 2, 3]
    history = client.run_history("unbound")
    assert max(history[-1].gammas or []) > 1e6
    assert np.array_equal(history[-1].gammas, job.state.gammas)
    assert client.get_run("unbound").settings == job.state.settings
    with AdaFocal(client, run="unbound", rate=300.0, gamma_max=None) as again:
        assert again.state == job.state

    session = client.open_run("served", settings=job.state.settings, decides="service")
    for step, (logits, labels) in enumerate(given):
        seen = BinStatistics.from_logits(logits.numpy(), labels.numpy())
        client.send_statistics("served", step + 1, seen, session=session)
    state = client.run_state("served", after=2, wait=30, session=session).state
    assert state is not None
    assert state.is_near(job.state, 1e-6)


def test_an_older_checkpoint_is_a_session_from_its_step(client: calibrd.Client) -> None:
    first, second, third, fourth = passes(4)
    with AdaFocal(client, run="checkpoint") as job:
        stepped(job, first)
        kept = job.state_dict()
        stepped(job, second, third)
        job.load_state_dict(kept)
        stepped(job, fourth)
        wanted = job.state
    history = client.run_history("checkpoint")
    assert line_of(client, "checkpoint") == [1, 2]
    assert np.array_equal(history[-1].gammas, wanted.gammas)
    with AdaFocal(client, run="checkpoint", resume=kept) as job:
        stepped(job, fourth)
        assert job.state == wanted
    assert line_of(client, "checkpoint") == [1, 2]
    assert len(client.get_run("checkpoint").sessions or []) == 3


def test_a_session_named_again_continues_or_becomes_another(client: calibrd.Client) -> None:
    first, second, third = passes(3)
    with AdaFocal(client, run="named", session="job-7") as job:
        stepped(job, first)
        kept = job.state_dict()
        stepped(job, second)
    with AdaFocal(client, run="named", session="job-7") as job:
        stepped(job, third)
    assert line_of(client, "named") == [1, 2, 3]
    assert {step.session for step in client.run_history("named")} == {"job-7"}
    with AdaFocal(client, run="named", session="job-7", resume=kept) as job:
        stepped(job, third)
    assert line_of(client, "named") == [1, 2]
    assert client.run_history("named")[-1].session.startswith("job-7.")


def test_a_monitor_is_a_run_of_metrics(client: calibrd.Client) -> None:
    first, second, third = passes(3)
    with Monitor(client, run="metrics-alone") as monitor:
        stepped(monitor, first)
        monitor.observe(*second)
        summary = monitor.step()
    with Monitor(client, run="metrics-alone") as monitor:
        assert monitor.steps == 2
        stepped(monitor, third)
        monitor.load_state_dict({"step": 1})
        stepped(monitor, second)
    history = client.run_history("metrics-alone")
    assert line_of(client, "metrics-alone") == [1, 2]
    assert history[-1].metrics.ece == pytest.approx(summary.ece)
    assert history[-1].gammas is None


def test_refusals_are_raised_when_it_begins(client: calibrd.Client, tmp_path: Path) -> None:
    with AdaFocal(client, run="refused"):
        pass
    with refused("run_differs", match=r"rate 1\.0, not 2\.0"):
        AdaFocal(client, run="refused", rate=2.0)
    with refused("run_differs", match="kind"):
        Monitor(client, run="refused")
    assert list((tmp_path / "state").rglob("*.*")) == []


def test_a_wrong_key_is_raised_at_once(line: FaultyLine) -> None:
    told = b'{"code": "invalid_api_key", "detail": "this key is not known"}'
    line.before = lambda asked: Say(401, {}, told)
    for fresh in (True, False):
        with pytest.raises(Unauthenticated, match="not known"):
            Monitor(line.url, run="no-key", fresh=fresh)


def test_ranks_that_communicate_only_through_the_service(
    service: Running, client: calibrd.Client
) -> None:
    """Each rank observes a part, and all get the state for the whole set."""
    given = passes(6)
    states: dict[int, list[object]] = {}

    def rank(number: int) -> None:
        with AdaFocal(
            service.url, run="apart", rank=number, world_size=3, session="job-1", budget=30
        ) as job:
            states[number] = []
            for batch in given[number::3]:
                stepped(job, batch)
                states[number].append(job.state.to_dict())

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert states[0] == states[1] == states[2]
    alone = AdaFocal(None, run="alone")
    for start in (0, 3):
        for batch in given[start : start + 3]:
            alone.observe(*batch)
        alone.step()
        assert states[0][start // 3] == alone.state.to_dict()
    assert [step.ranks for step in client.run_history("apart")] == [[0, 1, 2]] * 2


def test_a_rank_without_a_response_continues_and_adopts_the_state_later(
    service: Running, client: calibrd.Client, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third, fourth = passes(4)
    options = {"run": "slow-rank", "world_size": 2, "session": "job"}
    with (
        AdaFocal(service.url, rank=0, budget=0.3, **options) as quick,
        AdaFocal(service.url, rank=1, budget=5, **options) as slow,
    ):
        stepped(quick, first)
        assert "rank 0 continues with its own state at step 1" in caplog.text
        alone = AdaFocal(None, run="alone")
        stepped(alone, first)
        assert quick.state == alone.state

        stepped(slow, second)  # completes step 1
        assert slow.state != quick.state
        joined = threading.Thread(target=stepped, args=(quick, third))
        quick._reporter._budget = 5.0  # type: ignore[union-attr]
        joined.start()
        stepped(slow, fourth)
        joined.join()
        assert slow.state == quick.state
        assert slow.state.step == 2
    wait_until(lambda: line_of(client, "slow-rank") == [1, 2])


def test_an_interrupted_wait_is_resumed(service: Running, line: FaultyLine) -> None:
    mine, yours = passes(2)
    line.before = first(1, lose, "GET", "/state")
    options = {"run": "broken-wait", "world_size": 2, "session": "job", "budget": 5}
    with (
        AdaFocal(line.url, rank=0, **options) as here,
        AdaFocal(service.url, rank=1, **options) as there,
    ):
        waiting = threading.Thread(target=stepped, args=(here, mine))
        waiting.start()
        wait_until(lambda: line.count("GET", "/state"))
        stepped(there, yours)
        waiting.join()
        assert here.state == there.state


@pytest.mark.parametrize("fresh", [False, True])
def test_a_service_that_is_not_calibrd_is_an_error_at_the_start(
    line: FaultyLine, fresh: bool
) -> None:
    line.before = lambda asked: Say(404, {}, b"<html>")
    with pytest.raises(NotCalibrd, match="is not a calibrd service"):
        Monitor(line.url, run="elsewhere", fresh=fresh, budget=30)
