"""A run continues from its position even if steps are unsent, lost or damaged."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from pathlib import Path

import pytest
from helpers.faulty_http_proxy import FaultyLine, ReceivedRequest, Say
from helpers.live_service import by_the_clock, wait_until
from helpers.training_passes import away, has_line, in_outbox, line_of, passes, stepped, unsent

import calibrd
from calibrd.training import AdaFocal, Monitor
from calibrd.training.reporting.outbox import DATABASE, Outbox
from calibrd.training.reporting.sessions import Pass

Kind = type[AdaFocal | Monitor]


def step_of(job: AdaFocal | Monitor) -> int:
    return job.state_dict()["step"] if isinstance(job, Monitor) else job.state.step


@pytest.mark.parametrize("kind", [AdaFocal, Monitor])
def test_a_late_service_does_not_rewind_the_run(
    kind: Kind, line: FaultyLine, client: calibrd.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Everything is sent, but the service does not respond when the next job begins."""
    run, batches = f"late-{kind.kind}", passes(4)
    with kind(line.url, run=run, budget=30) as job:
        stepped(job, *batches[:3])
        kept = job.state_dict()
    with away(line), kind(line.url, run=run, budget=0.3) as job:
        assert job.state_dict() == kept
        stepped(job, batches[3])
    assert "continues where this machine left off, from step 3" in caplog.text
    with kind(line.url, run=run, budget=30) as job:
        assert step_of(job) == 4
    assert line_of(client, run) == [1, 2, 3, 4]


def test_a_run_that_goes_on_says_so(
    line: FaultyLine, client: calibrd.Client, caplog: pytest.LogCaptureFixture
) -> None:
    batches = passes(2)
    for fresh in (True, False, True):
        caplog.clear()
        with Monitor(line.url, run="twice", budget=30, fresh=fresh) as job:
            stepped(job, batches[0])
        words = "twice: this run continues from step 1; pass fresh=True to start over"
        assert caplog.messages == ([] if fresh else [words])


def test_a_job_that_is_still_sending_does_not_rewind_the_next(
    line: FaultyLine, client: calibrd.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """The job is closed in the same process before everything has been sent."""

    def slow(asked: ReceivedRequest) -> Say | None:
        time.sleep(0.4 if asked.place.endswith("/stats") else 0)
        return None

    def threads() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if one.name.startswith("calibrd-")}

    before = threads()
    line.before = slow
    caplog.set_level(logging.INFO, "calibrd")
    with AdaFocal(line.url, run="still-sends", budget=0.5) as job:
        stepped(job, *passes(6)[:5])
    assert not has_line(client, "still-sends", 1, 2, 3, 4, 5)
    with AdaFocal(line.url, run="still-sends", budget=5) as again:
        assert again.state == job.state
        stepped(again, passes(6)[5])
        wait_until(lambda: has_line(client, "still-sends", 1, 2, 3, 4, 5, 6))
    assert "continues where this machine left off, from step 5" in caplog.text
    wait_until(lambda: threads() <= before)
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


@by_the_clock
def test_sending_a_backlog_stays_within_the_budget(
    line: FaultyLine,
    client: calibrd.Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Reading and sending the unsent steps takes longer than the budget."""
    batches = passes(11)
    with away(line), AdaFocal(line.url, run="backlog", budget=0.2) as job:
        stepped(job, *batches[:10])
    caplog.clear()
    read = Outbox.read

    def slow(outbox: Outbox, key: str, after: int) -> Pass | None:
        time.sleep(0.3)
        return read(outbox, key, after)

    monkeypatch.setattr(Outbox, "read", slow)
    begun = time.monotonic()
    with AdaFocal(line.url, run="backlog", budget=2.0) as again:
        assert again.state == job.state
        stepped(again, batches[10])
        assert time.monotonic() - begun < 2.9, "reading all takes 3 s"
        wait_until(lambda: has_line(client, "backlog", *range(1, 12)))
    assert caplog.messages == []


def test_progress_on_another_machine_counts(
    line: FaultyLine, client: calibrd.Client, tmp_path: Path
) -> None:
    """The unsent steps on this machine are older than those on the service."""
    batches = passes(4)
    with away(line), Monitor(line.url, run="another-folder", budget=0.2) as job:
        stepped(job, batches[0])
    with Monitor(client, run="another-folder", budget=30, folder=tmp_path / "there") as job:
        stepped(job, *batches[1:])
    with Monitor(line.url, run="another-folder", budget=30) as job:
        assert job.steps == 3


def test_the_position_of_the_service_counts_if_everything_is_sent(
    client: calibrd.Client, tmp_path: Path
) -> None:
    """The position on this machine is only used if the service cannot be reached."""
    with Monitor(client, run="says", budget=30) as job:
        stepped(job, *passes(2))
    other = calibrd.Client(client.url, api_key=None)
    with Monitor(other, run="says", budget=30, resume={"step": 7}, folder=tmp_path) as job:
        pass
    with Monitor(client, run="says", budget=30) as job:
        assert job.steps == 7


def test_setting_the_clock_back_does_not_change_the_order(
    line: FaultyLine, client: calibrd.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, now = passes(3), time.time
    for back, batch in ((0, batches[0]), (3600, batches[1])):
        monkeypatch.setattr(time, "time", lambda back=back: now() - back)
        with away(line), AdaFocal(line.url, run="set-back", budget=0.2) as job:
            stepped(job, batch)
    with AdaFocal(line.url, run="set-back", budget=30) as again:
        assert again.state == job.state
        stepped(again, batches[2])
    assert line_of(client, "set-back") == [1, 2, 3]


def test_an_unreadable_pass_is_logged_and_blocks_no_other(
    line: FaultyLine, client: calibrd.Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with away(line), AdaFocal(line.url, run="unreadable", budget=0.2) as job:
        stepped(job, *passes(3))
    in_outbox(tmp_path, "UPDATE passes SET statistics = x'7b' WHERE number = 2")
    for _ in range(2):
        with AdaFocal(line.url, run="unreadable", budget=30) as again:
            assert again.state == job.state
    assert len([one for one in caplog.messages if "cannot read a pass" in one]) == 1
    assert line_of(client, "unreadable") == [1, 3]
    assert unsent(tmp_path) == []


@pytest.mark.parametrize("damage", ["run", "plan", "lock"])
def test_a_damaged_session_delays_no_other(
    damage: str,
    line: FaultyLine,
    client: calibrd.Client,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = f"damaged-{damage}"
    for batch in passes(2):
        with away(line), Monitor(line.url, run=run, budget=0.2) as job:
            stepped(job, batch)
    (path,) = tmp_path.rglob(DATABASE)
    key, plan = in_outbox(tmp_path, "SELECT key, plan FROM sessions ORDER BY begun")[0]
    if damage == "lock":
        path.with_name("damaged.lock").mkdir()
        in_outbox(tmp_path, "UPDATE sessions SET owner = 'damaged.lock' WHERE key = ?", key)
    else:
        damaged = "[]" if damage == "plan" else plan.replace(run, "No Name")
        in_outbox(tmp_path, "UPDATE sessions SET plan = ? WHERE key = ?", damaged, key)
    caplog.clear()
    with Monitor(line.url, run=run, budget=30) as job:
        assert job.steps == 2
        wait_until(lambda: has_line(client, run, 2))
    told = [
        one for one in caplog.messages if str(path.parent) in one and "not all steps" not in one
    ]
    assert len(told) == 1
    assert not any(one.exc_info for one in caplog.records)
    left = in_outbox(tmp_path, "SELECT number FROM passes WHERE key = ? AND NOT is_sent", key)
    assert left == [(1,)]


def test_a_folder_that_is_deleted_is_made_again(
    line: FaultyLine, client: calibrd.Client, tmp_path: Path
) -> None:
    batches = passes(3)
    with away(line):
        job = Monitor(line.url, run="deleted", budget=0.3)
        stepped(job, batches[0])
        shutil.rmtree(tmp_path / "state")
        stepped(job, batches[1])
        shutil.rmtree(tmp_path / "state")
        job.close()
    with Monitor(line.url, run="deleted", budget=30) as job:
        pass
    assert line_of(client, "deleted") == [1, 2]


def test_an_unreadable_last_position_is_tolerated(
    line: FaultyLine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run then continues from the step before."""
    first, second = passes(2)
    with away(line):
        with AdaFocal(line.url, run="garbled", budget=0.2) as job:
            stepped(job, first)
            kept = job.state
            stepped(job, second)
        in_outbox(tmp_path, "UPDATE passes SET state = '{' WHERE number = 2")
        with AdaFocal(line.url, run="garbled", budget=0.2) as again:
            assert again.state == kept
    assert "cannot read the last position of the run" in caplog.text


def test_a_damaged_outbox_is_put_aside(
    line: FaultyLine, client: calibrd.Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = passes(2)
    with away(line), Monitor(line.url, run="put-aside", budget=0.2) as job:
        stepped(job, first)
    (path,) = tmp_path.rglob(DATABASE)
    path.write_bytes(b"no database" * 1000)
    with away(line), Monitor(line.url, run="put-aside", budget=0.5) as job:
        stepped(job, second)
    assert "renamed to outbox.damaged-" in caplog.text
    assert unsent(tmp_path) == [1]
    assert [one.read_bytes()[:11] for one in path.parent.glob("*.damaged-*")] == [b"no database"]


@pytest.mark.parametrize("kind", [AdaFocal, Monitor])
def test_steps_after_ones_lost_by_the_service_form_a_new_session(
    kind: Kind, line: FaultyLine, client: calibrd.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """The service accepted them, but an older backup has been restored since."""
    run, batches = f"restored-{kind.kind}", passes(6)
    told = {"session": "any", "status": "decided", "ranks": [0], "late": False, "state": None}

    def losing(asked: ReceivedRequest) -> Say | None:
        number = asked.place.split("/")[-2]
        if number not in ("3", "4"):
            return None
        return Say(200, {}, json.dumps({**told, "step": int(number)}).encode())

    line.before = losing
    with kind(line.url, run=run, budget=30) as job:
        stepped(job, *batches)
        wait_until(lambda: has_line(client, run, 1, 2, 5, 6))
    assert len([one for one in caplog.messages if "are lost" in one]) == 1
    with kind(line.url, run=run, budget=30) as again:
        assert again.state_dict() == job.state_dict()
