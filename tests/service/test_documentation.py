"""The scopes in docs/how-to/secure.md are correct, and the README's commands run unchanged."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.live_service import ROOT, running

from service.access.permissions import Scope

GUIDE = (ROOT / "docs/how-to/secure.md").read_text()
README = (ROOT / "README.md").read_text()


def test_scopes_table_is_true():
    assert re.findall(r"^\| `(\w+)` \| .*", GUIDE.split("| scope |")[1].split("```")[0], re.M) == [
        *Scope
    ]


def test_settings_come_from_the_environment_and_flags_win(tmp_path):
    code = "from service.__main__ import main; import sys; sys.exit(main(sys.argv[1:]))"
    environment = os.environ | {"CALIBRD_PORT": "70000", "CALIBRD_DATA_DIR": str(tmp_path)}
    refused = subprocess.run(
        [sys.executable, "-c", code, "serve"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 2
    assert "CALIBRD_PORT" in refused.stderr
    assert "Traceback" not in refused.stderr
    with running(tmp_path, CALIBRD_PORT="70000") as started:  # --port 0 is given
        assert started.url.startswith("http://127.0.0.1:")


@pytest.fixture(scope="module")
def pasted(tmp_path_factory) -> tuple[str, Path, float]:
    """Return the output of the README's curl commands, their folder, and how long they took."""
    (lines,) = [one for one in re.findall(r"```bash\n(.*?)```", README, re.S) if "curl" in one]
    folder = tmp_path_factory.mktemp("pasted")
    (folder / "examples").symlink_to(ROOT / "examples")
    with running(folder / "data") as started:
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", lines],
            cwd=folder,
            env=os.environ | {"CALIBRD_URL": started.url},
            capture_output=True,
            text=True,
            timeout=120,
        )
        took = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    return done.stdout, folder, took


def test_readme_lines_fit_promote_predict_and_report_within_a_minute(pasted):
    printed, folder, took = pasted
    answers = [json.loads(text) for text in re.findall(r"\{.*?\}(?=\{|\s*$)", printed, re.S)]
    fit, alias, prediction = answers
    assert (fit["status"], fit["versions"]) == ("succeeded", [1, 2])
    assert (alias["name"], alias["version"]) == ("production", 2)
    assert prediction["version"] == 2
    assert prediction["top"][0]["classes"][0] == 0
    whole = json.loads((folder / "answer.json").read_text())
    assert np.array(whole["probabilities"]).sum(axis=1) == pytest.approx(1)
    assert whole["evaluation"]["metrics"]["ece"] < 0.05
    assert "improved" in (folder / "report.html").read_text()
    assert took < 60


def test_greeting_can_be_pasted(tmp_path):
    with running(tmp_path / "data") as started:
        lines, code = started.greeting.split("or in Python:")
        commands = lines.split("from this folder:")[1]
        for language, text in (("bash", commands), ("python", code)):
            command = ["bash", "-euc"] if language == "bash" else [sys.executable, "-c"]
            program = "\n".join(line[2:] for line in text.splitlines())
            done = subprocess.run(
                [*command, program], cwd=ROOT, capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, done.stderr
            assert ("succeeded" if language == "bash" else "fashion@2 improved") in done.stdout
        assert str(tmp_path) in started.greeting
        assert started.stop() == 0
