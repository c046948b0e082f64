"""The real command: mistakes are told in one line, and signals end it in peace."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from live_service import ROOT, running

from service.settings import Settings

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
URL_SECRET = "hunter2"  # noqa: S105
NOWHERE = f"postgresql://calibrd:{URL_SECRET}@127.0.0.1:1/calibrd"


def as_a_plain_user() -> None:
    """Let the permissions of files count for root as well."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


def command(
    *arguments: object, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What ``python -m service`` does with these arguments."""
    return subprocess.run(
        [sys.executable, "-m", "service", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        preexec_fn=as_a_plain_user,
        capture_output=True,
        text=True,
        timeout=60,
    )


def refusal(*arguments: object, **environment: str) -> str:
    """The one line in which the command refuses."""
    done = command(*arguments, **environment)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert URL_SECRET not in line
    return line


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--database-url", "nonsense", "sqlite:///file or postgresql://"),
        ("--database-url", "postgresql://127.0.0.1:port/calibrd", "--database-url"),
        ("--database-url", NOWHERE, "Connection refused"),
        ("--database-url", "sqlite:////proc/calibrd.db", "--database-url"),
        ("--blobs-url", "ftp://127.0.0.1/blobs", "file:///folder or s3://bucket"),
        ("--data-dir", "/proc/calibrd", "--data-dir"),
        ("--host", "no-such-host.invalid", "--host"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line(
    flag: str, value: str, said: str, tmp_path: Path
) -> None:
    assert said in refusal("serve", "--port", 0, "--data-dir", tmp_path, flag, value)


@pytest.mark.parametrize("verb", ["migrate", "worker"])
def test_other_commands_tell_of_a_database_that_is_away(verb: str, tmp_path: Path) -> None:
    line = refusal(verb, CALIBRD_DATABASE_URL=NOWHERE, CALIBRD_DATA_DIR=str(tmp_path))
    assert "cannot use the database" in line
    assert "--database-url" in line


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert str(file) in refusal("serve", "--port", 0, "--data-dir", file)


def test_a_data_directory_that_cannot_be_written(tmp_path: Path) -> None:
    command("migrate", "--data-dir", tmp_path)
    tmp_path.chmod(0o555)
    try:
        for verb in ("serve", "worker"):
            line = refusal(verb, "--port", 0, "--data-dir", tmp_path)
            assert f"{tmp_path} (Permission denied)" in line
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.parametrize("content", [b"no database at all" * 100, b""])
def test_a_file_that_is_no_database_or_may_not_be_changed(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "calibrd.db"
    file.write_bytes(content)
    file.chmod(0o444)
    assert "cannot use the database" in refusal("migrate", "--data-dir", tmp_path)


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refusal("serve", "--port", port, "--data-dir", tmp_path / "data")
    assert f"127.0.0.1:{port}" in line
    assert "--port" in line
    assert not (tmp_path / "data").exists()


def test_other_addresses_need_a_key(tmp_path: Path) -> None:
    everywhere = "0.0.0.0"  # noqa: S104
    done = command("serve", "--host", everywhere, "--port", 0, "--data-dir", tmp_path)
    assert done.returncode == 2
    assert "keys create" in done.stderr
    assert "Traceback" not in done.stderr


def test_variables_that_are_no_settings_are_told(tmp_path: Path) -> None:
    done = command(
        "migrate",
        CALIBRD_DATA_DIR=str(tmp_path),
        CALIBRD_DATADIR="x",
        CALIBRD_COLOUR="x",
        CALIBRD_URL="x",
        CALIBRD_API_KEY="x",
        CALIBRD_TEST_SEED="1",
        calibrd_port="8001",
    )
    assert done.returncode == 0
    assert done.stdout == "the database is up to date\n"
    assert done.stderr.splitlines() == [
        "warning: CALIBRD_COLOUR is not a setting, and is ignored",
        "warning: CALIBRD_DATADIR is not a setting: did you mean CALIBRD_DATA_DIR?",
    ]


def test_a_data_directory_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "a b?c#d%41"
    assert command("keys", "create", "--data-dir", folder).returncode == 0
    assert command("keys", "list", "--data-dir", folder).stdout.count("unnamed") == 1
    assert sorted(one.name for one in tmp_path.iterdir()) == [folder.name]
    assert {one.name for one in folder.iterdir()} >= {"blobs", "calibrd.db"}


@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGTERM],
        [signal.SIGTERM, signal.SIGTERM],
        [signal.SIGINT, signal.SIGINT],
        [signal.SIGINT, signal.SIGTERM, signal.SIGINT],
    ],
)
def test_signals_end_the_service_in_peace(signals: list[signal.Signals], tmp_path: Path) -> None:
    with running(tmp_path, "--workers", "0") as started:
        for number in signals:
            started.process.send_signal(number)
            time.sleep(0.05)
        assert started.process.wait(20) == 0
        assert "Traceback" not in started.log.read_text()


def test_a_worker_alone_prepares_a_fresh_directory_and_leaves_when_told(tmp_path: Path) -> None:
    folder = tmp_path / "fresh"
    log = tmp_path / "worker.log"
    with log.open("w") as errors:
        worker = subprocess.Popen(
            [sys.executable, "-m", "service", "worker", "--data-dir", folder],
            cwd=ROOT,
            stderr=errors,
        )
    try:
        deadline = time.monotonic() + 60
        while "takes from fit.cpu" not in log.read_text():
            assert worker.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
    finally:
        worker.kill()
        worker.wait()
    assert "Traceback" not in log.read_text()
    assert command("keys", "list", "--data-dir", folder).returncode == 0


def test_help_names_every_command_and_setting() -> None:
    whole = command("--help")
    assert whole.returncode == 0
    for verb in ("serve", "worker", "migrate", "keys"):
        assert f"\n    {verb} " in whole.stdout
    of_serve = command("serve", "--help").stdout
    words = " ".join(of_serve.split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')} " in words
        assert str(field.description) in words
    assert max(map(len, of_serve.splitlines())) <= 80
