"""The guides to the command line describe every flag, and the CI gate in them runs."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from helpers.live_service import ROOT, Running, sample

import calibrd
from calibrators.methods.temperature import TemperatureMap
from calibrd.cli.arguments import command_parser

GUIDE = (ROOT / "docs/tutorials/ci-gate.md").read_text()
REFERENCE = (ROOT / "docs/reference/command-line.md").read_text()


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    return [action.option_strings[0] for action in parser._actions if action.option_strings]


def commands() -> list[tuple[str, argparse.ArgumentParser, str]]:
    (verbs,) = [one for one in command_parser()._actions if isinstance(one.choices, dict)]
    told = {one.dest: one.help for one in verbs._get_subactions()}
    return [(name, parser, str(told[name])) for name, parser in verbs.choices.items()]


COMMON = [flag for flag in flags_of(command_parser()) if flag not in ("-h", "--version")]


def test_the_flags_of_every_command_are_named() -> None:
    named = " and ".join(", ".join(f"`{flag}`" for flag in COMMON).rsplit(", ", 1))
    assert f"other commands take {named}." in " ".join(REFERENCE.split())


def test_every_flag_has_help() -> None:
    for _, parser, _ in commands():
        for action in parser._actions:
            assert action.help or action.metavar == "NAME"


@pytest.mark.parametrize(("scale", "code"), [(1.0, 0), (3.0, 1)])
def test_the_gate_for_github_runs(
    service: Running, tmp_path: Path, scale: float, code: int
) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.S)
    workflow: dict[Any, Any] = yaml.safe_load(text)
    (gate,) = [one for one in workflow["jobs"]["gate"]["steps"] if "gate" in one.get("run", "")]
    assert {*gate["env"]} == {"CALIBRD_URL", "CALIBRD_API_KEY"}
    with calibrd.Client(service.url) as client:
        version = client.register("shoes", TemperatureMap(k=5, temperature=3.0))
        client.promote("shoes", version, reason="it is the truth", force=True)
    logits, labels = sample(10_000, scale=3.0 * scale)
    np.savez(tmp_path / "val.npz", logits=logits, labels=labels)
    command = tmp_path / "bin" / "calibrd"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m calibrd "$@"\n')
    command.chmod(0o755)
    summary = tmp_path / "summary.md"
    done = subprocess.run(
        ["bash", "-e", "-c", gate["run"]],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
            "CALIBRD_URL": service.url,
            "GITHUB_STEP_SUMMARY": str(summary),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert "Calibration gate: " + ("pass" if code == 0 else "fail") in summary.read_text()
