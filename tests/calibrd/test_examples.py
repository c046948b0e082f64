"""Every example runs as a reader would run it, against the real service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.live_service import ROOT, Running

ELSEWHERE = {"model_server.py": "tests/calibrd/test_model_server.py"}
EXPECTED_OUTPUT = {
    "adafocal_training.py": ["adafocal: ECE 0.", "the service has 12 steps, all verified: True"],
    "ci_gate.sh": ["is within the limit", "fashion-ci@production is version 1"],
    "first_fit.py": ["verdict: improved", "production:", "a perfectly calibrated model would show"],
    "sklearn_model.py": ["verdict: ", "registered as digits-nb@", "the same probabilities"],
    "torch_onnx.py": ["verdict: ", "registered as digits-net@", "as torch, within"],
}
EXAMPLES = sorted(one for one in (ROOT / "examples").iterdir() if one.is_file())
SECONDS = 120
LONGEST = 60


@pytest.mark.parametrize(
    "script", [one for one in EXAMPLES if one.name not in ELSEWHERE], ids=lambda one: one.stem
)
def test_it_runs(script: Path, service: Running, tmp_path: Path) -> None:
    bin = Path(sys.executable).parent
    environment = os.environ | {
        "CALIBRD_URL": service.url,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        [sys.executable if script.suffix == ".py" else "bash", str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for words in EXPECTED_OUTPUT.get(script.name, []):
        assert words in done.stdout
    assert done.stdout.strip()
    for apart in re.findall(r"(?:same probabilities|as torch,) within (\S+)", done.stdout):
        assert float(apart) <= 1e-6
    assert len(script.read_text(encoding="utf-8").splitlines()) <= LONGEST


def test_the_others_have_tests_of_their_own() -> None:
    for name, test in ELSEWHERE.items():
        assert name.removesuffix(".py") in (ROOT / test).read_text(encoding="utf-8")
