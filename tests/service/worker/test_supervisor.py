"""Worker processes started by the API, with small programs in place of workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from service.settings import Settings
from service.worker import supervisor
from service.worker.supervisor import COMMAND, OURS, SUPERVISOR, WorkerSupervisor

SLEEPER = (sys.executable, "-c", "import time; time.sleep(60)")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)",
)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_worker_that_dies_is_replaced_and_all_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.1)
    workers = WorkerSupervisor(Settings(data_dir=tmp_path), 2, SLEEPER)
    workers.start()
    try:
        first, second = workers.pids()
        os.kill(first, signal.SIGKILL)
        until(lambda: len(workers.pids()) == 2 and first not in workers.pids())
        assert second in workers.pids()
        pids = workers.pids()
    finally:
        workers.stop()
    assert not any(map(lives, pids))
    assert workers.pids() == []


def test_pauses_between_starts_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.1)
    workers = WorkerSupervisor(
        Settings(data_dir=tmp_path), 1, (sys.executable, "-c", "raise SystemExit(3)")
    )
    with capture_logs() as logged:
        workers.start()
        try:
            until(lambda: len(logged) >= 3)
        finally:
            workers.stop()
    assert {(one["event"], one["code"]) for one in logged} == {("worker_exited", 3)}
    assert [one["restart_seconds"] for one in logged[:3]] == pytest.approx([0.1, 0.2, 0.4])


def test_a_process_that_does_not_exit_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 0.5)
    workers = WorkerSupervisor(Settings(data_dir=tmp_path), 1, STUBBORN)
    workers.start()
    (pid,) = workers.pids()
    time.sleep(0.5)
    workers.stop()
    assert not lives(pid)


def test_the_settings_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    given = Settings(data_dir=tmp_path / "here", fit_seconds=12.5, log_level="warning")
    answer = tmp_path / "answer.json"
    code = (
        "import os, pathlib; from service.settings import Settings; "
        f"pathlib.Path({str(answer)!r}).write_text(Settings().model_dump_json() + "
        "os.environ['CALIBRD_SUPERVISOR'])"
    )
    workers = WorkerSupervisor(given, 1, (sys.executable, "-c", code))
    workers.start()
    try:
        until(lambda: answer.exists() and answer.read_text() != "")
    finally:
        workers.stop()
    assert answer.read_text() == given.model_dump_json() + str(os.getpid())


def test_a_worker_leaves_when_its_supervisor_is_gone(tmp_path: Path) -> None:
    given = {"CALIBRD_DATA_DIR": str(tmp_path), "PYTHONPATH": OURS, SUPERVISOR: "1"}
    environment = {**os.environ, **given}
    orphan = subprocess.Popen(COMMAND, env=environment, stderr=subprocess.PIPE)
    try:
        assert b"Traceback" not in orphan.communicate(timeout=40)[1]
    finally:
        orphan.kill()
    assert orphan.returncode == 0


def test_the_api_side_does_not_load_torch() -> None:
    code = "import sys, service.worker.startup, service.worker.supervisor; print(*sys.modules)"
    done = subprocess.run(
        (sys.executable, "-c", code), check=True, timeout=30, capture_output=True, text=True
    )
    assert "sqlalchemy" in done.stdout.split()
    assert "torch" not in done.stdout.split()


def test_every_worker_has_a_slot_of_its_own_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.1)
    code = (
        "import os, pathlib, time; "
        f"pathlib.Path({str(tmp_path)!r}, os.environ['CALIBRD_SLOT'] + '-' + str(os.getpid()))"
        ".touch(); time.sleep(60)"
    )

    def slots() -> list[str]:
        return sorted(path.name.partition("-")[0] for path in tmp_path.iterdir())

    workers = WorkerSupervisor(Settings(data_dir=tmp_path), 2, (sys.executable, "-c", code))
    workers.start()
    try:
        until(lambda: slots() == ["0", "1"])
        os.kill(workers.pids()[1], signal.SIGKILL)
        until(lambda: slots() == ["0", "1", "1"])
    finally:
        workers.stop()


def test_a_process_that_had_claimed_a_fit_is_replaced_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 30.0)
    code = "import os; from service.worker.queue_worker import note_fit; note_fit(); os._exit(9)"
    workers = WorkerSupervisor(Settings(data_dir=tmp_path), 1, (sys.executable, "-c", code))
    with capture_logs() as logged:
        workers.start()
        try:
            until(lambda: len(logged) >= 3, seconds=20)
        finally:
            workers.stop()
    assert {(one["event"], one["restart_seconds"]) for one in logged} == {("worker_exited", 0.0)}
