"""The server command: errors are one line, and signals shut it down cleanly."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from helpers.commands import Done, as_a_plain_user, here
from helpers.live_service import NPZ, ROOT, by_the_clock, npz, running, sample, wait_until

from service.__main__ import main
from service.settings import Settings
from service.storage.database import Database
from service.worker.identity import new_worker_id

URL_SECRET = "hunter2"  # noqa: S105
NOWHERE = f"postgresql://calibrd:{URL_SECRET}@127.0.0.1:1/calibrd"
EVERYWHERE = "0.0.0.0"  # noqa: S104
SIGNAL_PAUSE = 0.05


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Restore the umask, which commands in this process change."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def command(*arguments: object) -> Done:
    """Run ``python -m service`` with these arguments; return its output."""
    return subprocess.run(
        [sys.executable, "-m", "service", *map(str, arguments)],
        cwd=ROOT,
        preexec_fn=as_a_plain_user,
        capture_output=True,
        text=True,
        timeout=60,
    )


def refusal(done: Done) -> str:
    """Run a command that must fail; return its error, which must be one line."""
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
    ],
)
@pytest.mark.parametrize("verb", ["migrate", "worker"])
def test_a_wrong_setting_is_reported_in_one_line(
    verb: str, flag: str, value: str, said: str, tmp_path: Path
) -> None:
    blobs = () if flag == "--blobs-url" else ("--blobs-url", (tmp_path / "blobs").as_uri())
    assert said in refusal(here(verb, "--data-dir", tmp_path, *blobs, flag, value))


def test_a_host_that_is_not_this_machine(tmp_path: Path) -> None:
    arguments = ("--port", 0, "--data-dir", tmp_path, "--host", "no-such-host.invalid")
    assert "--host" in refusal(command("serve", *arguments))


@pytest.mark.parametrize("device", ["banana", "cuda:99", "meta"])
def test_a_worker_does_not_start_on_a_missing_device(device: str, tmp_path: Path) -> None:
    line = refusal(here("worker", "--data-dir", tmp_path, "--device", device))
    assert "--device" in line
    assert repr(device) in line


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert str(file) in refusal(here("migrate", "--data-dir", file))


def test_a_data_directory_that_cannot_be_written(tmp_path: Path) -> None:
    here("migrate", "--data-dir", tmp_path)
    tmp_path.chmod(0o555)
    try:
        line = refusal(command("serve", "--port", 0, "--data-dir", tmp_path))
    finally:
        tmp_path.chmod(0o755)
    assert f"{tmp_path} (Permission denied)" in line


def test_a_file_that_is_not_a_database_or_is_read_only(tmp_path: Path) -> None:
    file = tmp_path / "calibrd.db"
    file.write_bytes(b"no database at all" * 100)
    assert "the database file is damaged" in refusal(here("migrate", "--data-dir", tmp_path))
    file.write_bytes(b"")
    file.chmod(0o444)
    assert "cannot use the database" in refusal(command("migrate", "--data-dir", tmp_path))


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refusal(command("serve", "--port", port, "--data-dir", tmp_path / "data"))
    assert f"127.0.0.1:{port}" in line
    assert "--port" in line
    assert not (tmp_path / "data").exists()


def test_other_addresses_need_a_key_and_the_hint_makes_one(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    done = command("serve", "--host", EVERYWHERE, "--port", 0, "--data-dir", folder)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    hint = shlex.split(done.stderr.partition("Create one:")[2].splitlines()[0])
    python, *arguments = hint
    assert (ROOT / python).samefile(sys.executable)
    assert arguments[:3] == ["-m", "service", "keys"]
    assert here(*arguments[2:]).stdout.startswith("cal_")
    assert here("keys", "list", "--data-dir", folder).stdout.count("admin") == 1


def test_a_hint_has_no_password(tmp_path: Path) -> None:
    done = here("keys", "revoke", "--data-dir", tmp_path, "--database-url", NOWHERE)
    assert "--database-url" in refusal(done)


def test_unknown_variables_cause_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = ("DATADIR", "COLOUR", "URL", "API_KEY", "TEST_SEED")
    for name in others:
        monkeypatch.setenv(f"CALIBRD_{name}", "1")
    monkeypatch.setenv("calibrd_port", "8001")
    monkeypatch.setenv("CALIBRD_DATA_DIR", str(tmp_path))
    done = here("migrate")
    assert (done.returncode, done.stdout) == (0, "the database is up to date\n")
    assert done.stderr.splitlines() == [
        "warning: CALIBRD_COLOUR is not a setting, and is ignored",
        "warning: CALIBRD_DATADIR is not a setting: did you mean CALIBRD_DATA_DIR?",
    ]


def test_a_data_directory_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "a b?c#d%41"
    assert here("migrate", "--data-dir", folder).returncode == 0
    made = here("keys", "create", "--scopes", "admin", "--data-dir", folder)
    assert made.returncode == 0
    assert here("keys", "list", "--data-dir", folder).stdout.count("unnamed") == 1
    assert sorted(one.name for one in tmp_path.iterdir()) == [folder.name]
    assert {one.name for one in folder.iterdir()} >= {"blobs", "calibrd.db"}


def readable_by_others(folder: Path) -> list[Path]:
    return [one for one in (folder, *folder.rglob("*")) if stat.S_IMODE(one.stat().st_mode) & 0o077]


def test_signals_stop_the_service_cleanly_and_its_files_are_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with running(tmp_path, "--workers", "0") as started:
        with started.client() as client:
            assert client.post("/v1/datasets", content=npz(*sample(20)), headers=NPZ).is_success
        for _ in range(2):
            started.process.send_signal(signal.SIGTERM)
            time.sleep(SIGNAL_PAUSE)
        assert started.process.wait(20) == 0
        assert "Traceback" not in started.log.read_text()
    assert readable_by_others(tmp_path) == [started.log]  # which this test opened
    made = {one.name for one in tmp_path.rglob("*") if one.is_file()}
    assert len(made) > 2
    assert "calibrd.db" in made


def test_a_fresh_data_directory_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    here("migrate", "--data-dir", folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "calibrd.db").stat().st_mode) == 0o600


SLOW_UPLOAD = (
    b"POST /v1/datasets HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900000\r\n"
    b"Content-Type: application/x-npz\r\n\r\nPK\x03\x04"
)


@by_the_clock
def test_waiting_requests_get_a_response_at_shutdown(tmp_path: Path) -> None:
    with running(tmp_path, "--workers", "0") as started, started.client() as client:
        dataset = client.post("/v1/datasets", content=npz(*sample(20)), headers=NPZ).json()["id"]
        order = {"dataset": dataset, "method": "temperature"}
        fit = client.post("/v1/calibrators/one/fits", json=order).json()["id"]

        def ask(method: str, path: str, **more: object) -> tuple[int, bool, float]:
            answer = client.request(method, path, headers={"Prefer": "wait=60"}, **more)
            return answer.status_code, "queued" in answer.text, time.monotonic()

        address = client.base_url.host, client.base_url.port
        with ThreadPoolExecutor() as threads, socket.create_connection(address, 20) as upload:
            upload.sendall(SLOW_UPLOAD)
            waiting = [
                threads.submit(ask, "POST", "/v1/calibrators/two/fits", json=order),
                threads.submit(ask, "GET", f"/v1/fits/{fit}"),
                threads.submit(ask, "GET", f"/v1/fits/{fit}/events"),
            ]
            wait_until(lambda: len(client.get("/v1/fits").json()["items"]) == 2)
            time.sleep(0.3)  # for the other requests, whose progress is not visible
            assert not any(one.done() for one in waiting)
            ended = time.monotonic()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
                started.process.send_signal(number)
                time.sleep(SIGNAL_PAUSE)
            answers = [one.result(20) for one in waiting]
            with upload.makefile("rb") as file:
                refusal_of_upload = file.read()
        assert [answer[:2] for answer in answers] == [(202, True), (200, True), (200, True)]
        assert max(at for _, _, at in answers) - ended < 1
        assert refusal_of_upload.startswith(b"HTTP/1.1 503 ")
        assert b'"code":"shutting_down"' in refusal_of_upload
        assert started.process.wait(20) == 0
        assert "Traceback" not in started.log.read_text()


def test_ctrl_c_during_the_imports_is_quiet(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "service", "migrate", "--data-dir", tmp_path],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        loaded = Path(f"/proc/{process.pid}/maps")
        wait_until(lambda: "pydantic_core" in loaded.read_text(), pause=0.001)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20) == (b"", b"")
        assert process.returncode == 130
    finally:
        process.kill()
        process.communicate()


def test_a_lone_worker_prepares_a_directory_and_stops_on_a_signal(tmp_path: Path) -> None:
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
        while "worker_started" not in log.read_text():
            assert worker.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        alive = here("workers", "--here", "--data-dir", folder)
        assert alive.returncode == 0
        assert f"{socket.gethostname()[:40]}-{worker.pid}-" in alive.stdout
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
    finally:
        worker.kill()
        worker.wait()
    assert "Traceback" not in log.read_text()
    assert here("keys", "list", "--data-dir", folder).returncode == 0
    gone = here("workers", "--data-dir", folder)
    assert (gone.returncode, gone.stdout, gone.stderr) == (1, "", "no live workers\n")


def test_workers_on_other_machines_are_not_counted_as_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert here("migrate", "--data-dir", tmp_path).returncode == 0
    with closing(Database(Settings(data_dir=tmp_path).database)) as database:
        with database.write() as store:
            monkeypatch.setattr(socket, "gethostname", lambda: "gpu-1")
            store.workers.beat(new_worker_id(), queues=["fit.gpu"], device="cuda:0")
        for machine, found in (("gpu-1", 0), ("gpu", 1), ("gpu-1-2", 1)):
            monkeypatch.setattr(socket, "gethostname", lambda name=machine: name)
            assert here("workers", "--here", "--data-dir", tmp_path).returncode == found
    done = here("workers", "--data-dir", tmp_path)
    assert done.returncode == 0
    assert "  fit.gpu  cuda:0  since 20" in done.stdout


def test_help_names_every_command_and_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    whole = capsys.readouterr().out
    for verb in ("serve", "worker", "workers", "migrate", "keys", "backup", "restore"):
        assert f"\n    {verb} " in whole
    with pytest.raises(SystemExit, match="0"):
        main(["serve", "--help"])
    of_serve = capsys.readouterr().out
    words = " ".join(of_serve.split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')} " in words
        assert str(field.description) in words
    assert max(map(len, of_serve.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "lacks_turn"),
    [
        (["sweep"], False),
        (["keys", "create", "--scopes", "admin"], False),
        (["sweep"], True),
        (["doctor"], True),
    ],
)
def test_a_read_only_data_directory_is_reported_in_one_line(
    words: list[str], lacks_turn: bool, tmp_path: Path
) -> None:
    """The database can be read as long as a service has it open, but not be written to."""
    assert here("migrate", "--data-dir", tmp_path).returncode == 0
    (tmp_path / "blobs").mkdir(exist_ok=True)
    file = f"sqlite:///{tmp_path / 'calibrd.db'}"
    with closing(Database(file)) as database, database.write() as store:
        store.chores.set_note("sweep", "")
        if lacks_turn:
            (tmp_path / "calibrd.db.turn").unlink()
        everything = [tmp_path, *tmp_path.rglob("*")]
        for one in everything:
            one.chmod(0o555 if one.is_dir() else 0o444)
        try:
            done = command(*words, "--data-dir", tmp_path)
        finally:
            for one in everything:
                one.chmod(0o755 if one.is_dir() else 0o644)
    if words == ["doctor"]:
        assert (done.returncode, done.stderr) == (0, "")
        return
    line = refusal(done)
    assert "readonly database" in line or "Permission denied" in line
