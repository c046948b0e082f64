"""What jobs leave on disk: found by the next process, sent in its place, and never lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.faulty_http_proxy import Asked, FaultyLine, Say, faulty_line, lose
from helpers.live_service import ROOT, Running, files_below, wait_until
from helpers.training_passes import away, has_line, line_of, nobody, passes, stepped

import calibrd
from calibrators.adafocal import BinStatistics
from calibrd.training import AdaFocal, Monitor
from calibrd.training.reporting import reporter, sessions
from calibrd.training.reporting.outbox import LOCK, Outbox, Pass, SessionPlan, Start
from calibrd.training.reporting.outbox_recovery import has_unsent, unsent_sessions


def monitored(session: str, begun: float = 0.0) -> SessionPlan:
    return SessionPlan("run", "monitor", None, 0, 1, "trainer", session, Start(), begun=begun)


def leave(outbox: Outbox, plan: SessionPlan, *numbers: int) -> Path:
    """Write what a process leaves that ends with these passes unsent; return where."""
    folder = outbox.create(plan)
    for number in numbers:
        folder.write(Pass(number, BinStatistics.empty().to_bytes()))
    folder.release()
    return folder.path


def test_a_folder_that_is_being_removed_hides_no_other(tmp_path: Path) -> None:
    """Its process, which has sent all, has just removed the lock."""
    outbox = Outbox(tmp_path / "run")
    removed = leave(outbox, monitored("a"), 1)
    (removed / LOCK).unlink()
    leave(outbox, monitored("b", begun=2.0), 1)
    leave(outbox, monitored("c", begun=1.0), 1, 2)
    found = unsent_sessions(outbox)
    assert [plan.session for plan, _ in found] == ["c", "b"]
    assert [len(folder.files()) for _, folder in found] == [2, 1]
    assert not (removed / LOCK).exists()
    assert unsent_sessions(outbox) == [], "they are held"
    for _, folder in found:
        folder.release()


def test_what_is_sent_late_does_not_wind_the_run_back(
    line: FaultyLine, client: calibrd.Client, tmp_path: Path
) -> None:
    """A job that was not heard of, another on another machine, and a third where the first was."""
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
    """A job that goes on from another's steps, on a machine whose clock is an hour behind."""
    first, second = passes(2)
    with Monitor(client, run="slow-clock", budget=30) as job:
        stepped(job, first)
    slow = SimpleNamespace(time=lambda: time.time() - 3600, monotonic=time.monotonic)
    for module in (reporter, sessions):
        monkeypatch.setattr(module, "time", slow)
    with Monitor(client, run="slow-clock", budget=30) as job:
        stepped(job, second)
    assert line_of(client, "slow-clock") == [1, 2]


@pytest.mark.parametrize("kind", [AdaFocal, Monitor])
@pytest.mark.parametrize("lost", ["pass", "session"])
def test_what_follows_a_lost_step_is_decided(
    kind: type[AdaFocal | Monitor],
    lost: str,
    line: FaultyLine,
    client: calibrd.Client,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A pass is not on disk; or the service, restored from a backup, lacks what it was sent."""
    run, given = f"lost-{lost}-{kind.kind}", passes(4)
    sent = 0 if lost == "pass" else 2

    def rule(asked: Asked) -> Say | None:
        number = asked.place.split("/")[-2]
        return lose() if number.isdigit() and int(number) > sent else None

    line.before = rule
    with kind(line.url, run=run, budget=30 if sent else 1) as job:
        stepped(job, *given[:3])
        if sent:
            wait_until(lambda: line.count("POST", "/3/stats"))
            job._reporter._budget = 1.0  # type: ignore[union-attr]
    line.before = lambda asked: None
    (plan,) = tmp_path.rglob("session.json")
    if lost == "pass":
        (plan.parent / "00000002.json").unlink()
    else:
        plan.write_text(plan.read_text().replace('"session": "', '"session": "forgotten-'))
    with kind(line.url, run=run, budget=30) as job:
        stepped(job, given[3])
    assert "a step of" in caplog.text
    assert line_of(client, run)[-2:] == [3, 4]


def test_one_session_that_cannot_be_sent_holds_up_no_other(
    line: FaultyLine, client: calibrd.Client, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    first, second, third = passes(3)
    with away(line), Monitor(line.url, run="held-up", budget=0.2) as job:
        stepped(job, first)
    line.before = lambda asked: Say(500) if asked.place.endswith("/1/stats") else None
    with Monitor(line.url, run="held-up", budget=2, resume={"step": 5}) as job:
        stepped(job, second, third)
        wait_until(lambda: has_line(client, "held-up", 6, 7))
    assert len([one for one in caplog.messages if "what is left of" in one]) == 1
    assert len(list(tmp_path.rglob("00000001.json"))) == 1


def test_the_session_before_a_checkpoint_is_put_away(
    client: calibrd.Client, tmp_path: Path
) -> None:
    with Monitor(client, run="put-away", budget=30) as job:
        stepped(job, passes(1)[0])
        for _ in range(3):
            job.load_state_dict({"step": 0})
            stepped(job, passes(1)[0])
        wait_until(lambda: len(files_below(tmp_path, "session.json")) == 1)


def test_what_waits_for_another_key_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for key in ("one", "one", "two"):
        caplog.clear()
        client = calibrd.Client("http://127.0.0.1:9", api_key=key)
        with client, Monitor(client, run="keys", budget=0.1, folder=tmp_path) as job:
            stepped(job, passes(1)[0])
        assert ("with another API key" in caplog.text) == (key == "two")
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
    """What a job says that does a step, and then ends, or is sent a signal."""
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
    """kill -9 while a step is on disk alone; after Ctrl-C and a plain end nothing is left."""
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
    assert [one.name for one in tmp_path.rglob("*.json")] == ["last.json"]


def test_folders_of_living_jobs_are_left_alone(client: calibrd.Client, tmp_path: Path) -> None:
    with nobody() as url, AdaFocal(url, run="living", budget=0.1) as job:
        stepped(job, passes(1)[0])
        with AdaFocal(url, run="living", budget=0.1) as other:
            assert other.state.step == 1
        (file,) = tmp_path.rglob("00000001.json")
        assert file.exists()


def test_a_session_may_be_removed_while_it_is_looked_at(tmp_path: Path) -> None:
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            for number in range(20):
                (tmp_path / f"{number}").mkdir()
            for number in range(20):
                (tmp_path / f"{number}").rmdir()

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        assert not any(has_unsent(Outbox(tmp_path)) for _ in range(2000))
    finally:
        ended.set()
        other.join()
