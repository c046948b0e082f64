"""Unsent steps on disk: the next process finds and sends them, and none are lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.faulty_http_proxy import FaultyLine, ReceivedRequest, Say, faulty_line, lose
from helpers.live_service import ROOT, Running, wait_until
from helpers.training_passes import (
    away,
    has_line,
    in_outbox,
    line_of,
    nobody,
    passes,
    stepped,
    unsent,
)

import calibrd
from calibrators.adafocal import BinStatistics
from calibrd.training import AdaFocal, Monitor
from calibrd.training.reporting import outbox, reporter, sender
from calibrd.training.reporting.outbox import DATABASE, Outbox
from calibrd.training.reporting.sessions import Pass, SessionPlan, Start


def monitored(session: str, begun: float = 0.0) -> SessionPlan:
    return SessionPlan("run", "monitor", None, 0, 1, "trainer", session, Start(), begun=begun)


def leave(path: Path, plan: SessionPlan, *numbers: int) -> Outbox:
    """Write passes of a session; return the outbox of the process, which is alive."""
    made = Outbox(path)
    made.plan(plan.session, plan)
    made.add(plan.session, *(Pass(one, BinStatistics.empty().to_bytes()) for one in numbers))
    return made


def test_leftovers_of_dead_processes_are_taken_over_oldest_first(tmp_path: Path) -> None:
    path = tmp_path / "run" / DATABASE
    ended = [leave(path, monitored("b", begun=2.0), 1), leave(path, monitored("c", 1.0), 1, 2)]
    ended.append(leave(path, monitored("sent", begun=0.5), 1))
    ended[-1].mark_sent("sent", 1)
    living = leave(path, monitored("living"), 1)
    for one in ended:
        one.shutdown().result()
    later = Outbox(path)
    found = later.recover()
    assert found.has_unsent
    assert [key for key, _ in found.sessions] == ["c", "b"]
    second = later.read("c", 1)
    assert second is not None
    assert (second.number, later.read("c", 2)) == (2, None)
    for one in (living, later):
        one.shutdown().result()


def test_one_of_many_processes_takes_over_leftovers(tmp_path: Path) -> None:
    """All processes look at once; while the one that succeeds lives, others get nothing."""
    path = tmp_path / "run" / DATABASE
    for number in range(5):
        leave(path, monitored(f"{number}"), 1).shutdown().result()
    outboxes = [Outbox(path) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(Outbox.recover, outboxes))
    assert sorted(key for one in found for key, _ in one.sessions) == ["0", "1", "2", "3", "4"]
    assert all(one.has_unsent for one in found)
    for one in outboxes:
        one.shutdown().result()


def test_many_writers_can_write_concurrently(tmp_path: Path) -> None:
    path = tmp_path / "run" / DATABASE
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(lambda one: leave(path, monitored(f"{one}"), 1, 2), range(8)))
    assert in_outbox(tmp_path, "SELECT count(*) FROM passes") == [(16,)]
    for one in written:
        one.shutdown().result()


def test_an_outbox_does_not_grow_without_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Training continues; passes that do not fit are only kept in memory."""
    bounds = [one for one in outbox.OPENING if "max_page_count" not in one]
    monkeypatch.setattr(outbox, "OPENING", ("PRAGMA max_page_count = 16", *bounds))
    with nobody() as url, Monitor(url, run="full", budget=0.3, folder=tmp_path) as job:
        stepped(job, *passes(200))
    (path,) = tmp_path.rglob(DATABASE)
    assert path.stat().st_size <= 16 * outbox.PAGE_BYTES
    assert 0 < len(unsent(tmp_path)) < job.steps
    assert len([one for one in caplog.messages if "database or disk is full" in one]) == 1


def test_few_passes_wait_in_memory(
    line: FaultyLine, client: calibrd.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are read from the outbox when the service is available again."""
    monkeypatch.setattr(sender, "MAX_IN_MEMORY", 2)
    with away(line):
        job = AdaFocal(line.url, run="in-memory", budget=0.2)
        stepped(job, *passes(6))
    stepped(job, passes(6)[0])
    wait_until(lambda: has_line(client, "in-memory", *range(1, 8)))
    job.close()


def test_sent_steps_leave_the_position_of_the_run(tmp_path: Path) -> None:
    """Nothing else is left, and the disk space is released."""
    path = tmp_path / "run" / DATABASE
    made = Outbox(path)
    plan = monitored("long", begun=3.0)
    made.plan("long", plan)
    made.add("long", *(Pass(one, bytes(20_000)) for one in range(1, 101)))
    assert path.stat().st_size > 2_000_000
    for number in range(1, 101):
        made.mark_sent("long", number)
    assert path.stat().st_size < 50_000
    found = made.recover()
    assert (found.last, found.begun, found.has_unsent) == (Start(100), 3.0, False)
    made.shutdown().result()


def test_late_steps_do_not_rewind_the_run(
    line: FaultyLine, client: calibrd.Client, tmp_path: Path
) -> None:
    """An offline job, a second job on another machine, and a third on the first machine."""
    early, *batches, last = passes(5)
    options = {"run": "wound-back", "rate": 3.0}
    with (
        away(line),
        AdaFocal(line.url, folder=tmp_path / "here", budget=0.2, session="early", **options) as job,
    ):
        stepped(job, early)
    with AdaFocal(client, folder=tmp_path / "there", budget=30, **options) as other:
        stepped(other, *batches)
    with AdaFocal(line.url, folder=tmp_path / "here", budget=30, **options) as job:
        assert job.state == other.state
        wait_until(lambda: line.count("POST", "/1/stats"))
        stepped(job, last)
    assert line_of(client, "wound-back") == [1, 2, 3, 4]
    assert [one.step for one in client.run_history("wound-back", session="early")] == [1]
    assert {one.session for one in client.run_history("wound-back")}.isdisjoint({"early"})


def test_a_slow_clock_does_not_make_a_job_an_old_one(
    client: calibrd.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job continues from another's steps on a machine whose clock is an hour behind."""
    first, second = passes(2)
    with Monitor(client, run="slow-clock", budget=30) as job:
        stepped(job, first)
    slow = SimpleNamespace(time=lambda: time.time() - 3600, monotonic=time.monotonic)
    for module in (reporter, sender):
        monkeypatch.setattr(module, "time", slow)
    with Monitor(client, run="slow-clock", budget=30) as job:
        stepped(job, second)
    assert line_of(client, "slow-clock") == [1, 2]


@pytest.mark.parametrize("kind", [AdaFocal, Monitor])
@pytest.mark.parametrize("lost", ["pass", "session"])
def test_steps_after_a_lost_step_are_decided(
    kind: type[AdaFocal | Monitor],
    lost: str,
    line: FaultyLine,
    client: calibrd.Client,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A pass is missing on disk, or the service has lost it because a backup was restored."""
    run, given = f"lost-{lost}-{kind.kind}", passes(4)
    sent = 0 if lost == "pass" else 2

    def rule(asked: ReceivedRequest) -> Say | None:
        number = asked.place.split("/")[-2]
        return lose() if number.isdigit() and int(number) > sent else None

    line.before = rule
    with kind(line.url, run=run, budget=30 if sent else 1) as job:
        stepped(job, *given[:3])
        if sent:
            wait_until(lambda: line.count("POST", "/3/stats"))
            job._reporter._budget = 1.0  # type: ignore[union-attr]
    line.before = lambda asked: None
    if lost == "pass":
        in_outbox(tmp_path, "DELETE FROM passes WHERE number = 2")
    else:
        begin, other = '"session": "', '"session": "forgotten-'
        in_outbox(tmp_path, "UPDATE sessions SET plan = replace(plan, ?, ?)", begin, other)
    with kind(line.url, run=run, budget=30) as job:
        stepped(job, given[3])
    assert "continues as a new session: earlier steps are lost" in caplog.text
    assert line_of(client, run)[-2:] == [3, 4]


def test_a_session_that_cannot_be_sent_delays_no_other(
    line: FaultyLine, client: calibrd.Client, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    first, second, third = passes(3)
    with away(line), Monitor(line.url, run="held-up", budget=0.2) as job:
        stepped(job, first)
    line.before = lambda asked: Say(500) if asked.place.endswith("/1/stats") else None
    with Monitor(line.url, run="held-up", budget=2, resume={"step": 5}) as job:
        stepped(job, second, third)
        wait_until(lambda: has_line(client, "held-up", 6, 7))
    assert len([one for one in caplog.messages if "cannot send the steps of" in one]) == 1
    assert unsent(tmp_path) == [1]


def test_the_session_before_a_checkpoint_is_set_aside(
    client: calibrd.Client, tmp_path: Path
) -> None:
    with Monitor(client, run="put-away", budget=30) as job:
        stepped(job, passes(1)[0])
        for _ in range(3):
            job.load_state_dict({"step": 0})
            stepped(job, passes(1)[0])
        wait_until(lambda: in_outbox(tmp_path, "SELECT count(*) FROM sessions") == [(1,)])


def test_unsent_steps_of_another_key_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for key in ("one", "one", "two"):
        caplog.clear()
        client = calibrd.Client("http://127.0.0.1:9", api_key=key)
        with client, Monitor(client, run="keys", budget=0.1, folder=tmp_path) as job:
            stepped(job, passes(1)[0])
        assert ("of another API key" in caplog.text) == (key == "two")
    assert job.steps == 1


JOB = """
import sys, time
import numpy as np
from calibrd.training import Monitor
url, rows, ending = sys.argv[1:]
job = Monitor(url, run="killed-job", budget=5)
job.observe(3 * np.eye(4)[[0, 1, 2] * int(rows)], [0, 1, 1] * int(rows))
job.step()
print(job.steps, flush=True)
time.sleep(0 if ending == "end" else 60)
"""


def end_of_job(url: str, rows: int, ending: str) -> str:
    """Return the output of a job that does a step and then exits or receives a signal."""
    process = subprocess.Popen(
        [sys.executable, "-c", JOB, url, str(rows), ending],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    if ending != "end":
        process.send_signal(getattr(signal, ending))
    _, errors = process.communicate(timeout=30)
    assert said, errors
    return said.strip()


def test_a_killed_job_leaves_its_steps_to_the_next(
    service: Running, client: calibrd.Client, tmp_path: Path
) -> None:
    """SIGKILL while a step is only on disk; after Ctrl-C or a normal exit nothing is left."""
    with faulty_line(service.url) as line:
        line.before = lambda asked: lose() if asked.place.endswith("/stats") else None
        assert end_of_job(line.url, 1, "SIGKILL") == "1"
        assert client.run_history("killed-job") == []
        line.before = lambda asked: None
        assert end_of_job(line.url, 2, "SIGINT") == "2"
        assert line_of(client, "killed-job") == [1, 2]
        assert end_of_job(line.url, 3, "end") == "3"
    assert line_of(client, "killed-job") == [1, 2, 3]
    assert [step.metrics.rows for step in client.run_history("killed-job")] == [3, 6, 9]
    assert unsent(tmp_path) == []
    assert [one.name for one in tmp_path.rglob("*.*")] == [DATABASE]


def test_folders_of_running_jobs_are_left_alone(client: calibrd.Client, tmp_path: Path) -> None:
    with nobody() as url, AdaFocal(url, run="living", budget=0.1) as job:
        stepped(job, passes(1)[0])
        with AdaFocal(url, run="living", budget=0.1) as other:
            assert other.state.step == 1
        assert unsent(tmp_path) == [1]
