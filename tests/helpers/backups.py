"""A service that was filled and backed up, and the commands for backup and restore."""

from __future__ import annotations

import io
import re
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

from helpers.live_service import NPZ, Local, in_process, npz, sample
from helpers.workspace_contents import CALIBRATOR, Things, fitted_elsewhere, make_one_of_each
from service.cli.arguments import run

LOGITS = sample(20)[0]


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in this process; return its exit code and output."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run([*map(str, arguments)])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """Run a command that must fail; return its error, which must be one line."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def predicted(client: httpx.Client, ref: object) -> bytes:
    """Return the bytes of a version's response to a predict call."""
    file = io.BytesIO()
    np.save(file, LOGITS)
    answer = client.post(
        f"/v1/calibrators/{CALIBRATOR}@{ref}/predict",
        content=file.getvalue(),
        headers={"Content-Type": "application/x-npy"},
    )
    assert answer.status_code == 200, answer.text
    return answer.content


@dataclass(frozen=True)
class Kept:
    """A data directory that was used by a service, its content, and its backup."""

    folder: Path
    file: Path
    things: Things
    key: str
    answer: bytes


def filled(local: Local) -> tuple[Things, str, bytes]:
    """Create at least one object of each kind; return a key, and the predictions of version 1."""
    key = local.post("/v1/keys", json={"name": "first", "scopes": ["admin"]}).json()["token"]
    let_in(local, key)
    answer = local.post(f"/v1/calibrators/{CALIBRATOR}/versions", json=fitted_elsewhere())
    assert answer.status_code == 201
    local.post("/v1/datasets", content=npz(*sample(30_000, 20)), headers=NPZ)
    return make_one_of_each(local), key, predicted(local, 1)


def let_in(local: Local, key: str) -> None:
    local.headers["Authorization"] = f"Bearer {key}"


def backed_up(folder: Path) -> Kept:
    """Run a service in this folder, fill it, stop it, and back it up."""
    with in_process(folder / "data") as local:
        held = filled(local)
    done = command("backup", folder / "backup.tar", "--data-dir", folder / "data")
    assert done.returncode == 0, done.stderr
    assert re.match(r"backed up 2 versions, 2 datasets, \d+ bytes in \d+\.\d s: ", done.stdout)
    return Kept(folder / "data", folder / "backup.tar", *held)
