"""Repeated options are either accepted or refused, but never silently dropped."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.live_service import Running, sample

from calibrd import Client
from calibrd.cli.arguments import command_parser, run
from calibrd.cli.output import CommandError

TAKEN = ("method", "param")


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def calibrd(capsys: pytest.CaptureFixture[str], service: Running, tmp_path: Path) -> Any:
    """Run a command in this process, against the shared service."""
    logits, labels = sample()
    np.savez(tmp_path / "val.npz", logits=logits, labels=labels)

    def go(*words: object) -> Done:
        code = run([*map(str, words), "--url", service.url])
        return Done(code, *capsys.readouterr())

    return go


@pytest.mark.parametrize("place", [(), ("--local",)])
def test_every_method_makes_a_version(
    calibrd: Any, client: Client, tmp_path: Path, place: tuple[str, ...]
) -> None:
    name = f"several{len(place)}"
    methods = ("--method", "temperature", "--method", "ets", "--method", "identity")
    done = calibrd("fit", tmp_path / "val.npz", "--name", name, *methods, *place)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    made = [f"{name}@1 (temperature): ", f"{name}@2 (ets): ", f"{name}@3 (identity): "]
    advice = lines.pop()
    assert len(lines) == len(made)
    for line, start in zip(lines, made, strict=True):
        assert line.startswith(start)
        assert ", ECE " in line
    assert re.match(rf"recommended: {name}@[12], because (temperature|ets) ", advice), advice
    assert [one.method for one in client.versions(name)] == ["identity", "ets", "temperature"]


def test_several_versions_are_one_document(calibrd: Any, tmp_path: Path) -> None:
    methods = ("--method", "temperature", "--method", "identity")
    done = calibrd("fit", tmp_path / "val.npz", "--name", "document", *methods, "--json")
    document = json.loads(done.out)
    found = document["versions"]
    assert document["recommendation"]["version"] == 1
    assert document["recommendation"]["reason"].startswith("temperature has the lowest NLL")
    assert [one["version"]["method"] for one in found] == ["temperature", "identity"]
    assert found[0]["report"]["verdict"] == "improved"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--name", "a", "--name", "b"), "--name was given twice"),
        (("--name", "a", "--seed", "1", "--seed", "2"), "--seed was given twice"),
        (("--name", "a", "--param", "x=1", "--param", "x=2"), "--param 'x' was given twice"),
        (("--name", "a", *["--method", "ets"] * 2), "--method 'ets' was given twice"),
        (
            ("--name", "a", "--method", "ets", "--method", "cts", "--param", "bins=5"),
            "--param needs a single --method, got ets, cts",
        ),
        (
            ("--name", "a", "--method", "ets", "--method", "cts", "--promote", "production"),
            "--promote needs a single --method, got ets, cts",
        ),
        (
            ("--out", "a.calibrd", "--method", "ets", "--method", "cts"),
            "--out needs a single --method, got ets, cts",
        ),
    ],
)
def test_repeated_single_value_options_are_refused(
    calibrd: Any, client: Client, tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    done = calibrd("fit", tmp_path / "val.npz", *words)
    assert (done.code, done.out) == (3, "")
    assert told in done.err
    assert "a" not in [one.name for one in client.calibrators()]


def options() -> list[tuple[str, argparse.Action]]:
    (verbs,) = [one for one in command_parser()._actions if isinstance(one.choices, dict)]
    return [
        (name, action)
        for name, parser in verbs.choices.items()
        for action in parser._actions
        if action.option_strings and action.nargs != 0
    ]


@pytest.mark.parametrize(("command", "action"), options())
def test_no_option_of_any_command_drops_a_value(command: str, action: argparse.Action) -> None:
    parser = command_parser()
    (verbs,) = [one for one in parser._actions if isinstance(one.choices, dict)]
    needed = [
        word
        for one in verbs.choices[command]._actions
        if one.required and one is not action and one.dest != action.dest
        for word in ([one.option_strings[0]] if one.option_strings else []) + ["0.5"]
    ]
    value = "0.5" if action.choices is None else next(iter(action.choices))
    value = "5" if action.type is int or action.dest == "limit" else value
    flag = action.option_strings[0]
    words = [command, *needed, flag, value, flag, value]
    if action.dest in TAKEN:
        assert len(getattr(parser.parse_args(words), action.dest)) == 2
    else:
        with pytest.raises(CommandError, match=f"{flag} was given twice"):
            parser.parse_args(words)


def test_a_flag_before_the_command_is_not_overridden(calibrd: Any, service: Running) -> None:
    done = calibrd("--url", "http://127.0.0.1:9", "list")
    assert done.code == 3
    assert "--url was given twice" in done.err
