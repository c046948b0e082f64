"""The commands that an installed server adds to ``calibrd``, and their errors without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import metadata

import pytest

from calibrd.__main__ import main
from calibrd.cli import server
from service import __main__ as service_main
from service.cli.arguments import command_parser

Install = Callable[[str | None], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install an object as the entry point, or remove the entry point."""

    def go(target: str | None) -> None:
        found = [metadata.EntryPoint(server.ENTRY, target, server.GROUP)] if target else []
        monkeypatch.setattr(metadata, "entry_points", lambda **_: metadata.EntryPoints(found))

    return go


def test_the_commands_are_those_of_the_service() -> None:
    (verbs,) = [one for one in command_parser()._actions if isinstance(one.choices, dict)]
    assert {one.dest: one.help for one in verbs._get_subactions()} == server.COMMANDS


@pytest.mark.parametrize("name", server.COMMANDS)
def test_without_a_server_the_hint_names_the_package(
    name: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(None)
    assert main([name, "--port", "0", "word"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: `{name}` is a server command, and the server is not installed\n")
    assert "hint: install the calibrd-server wheel" in err


def test_without_a_server_the_error_can_be_json(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(None)
    assert main(["serve", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "no_server"


def test_a_server_gets_the_arguments_as_they_are(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def command(arguments: list[str]) -> int:
        seen.append(arguments)
        return 7

    monkeypatch.setattr(service_main, "calibrd_command", command)
    install("service.__main__:calibrd_command")
    words = ["keys", "create", "--json", "--", "--name", "-q", "--help"]
    assert main(words) == 7
    assert seen == [words]


def test_flags_before_a_command_of_the_server_are_refused(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("service.__main__:calibrd_command")
    assert main(["--quiet", "doctor"]) == 3
    assert "`doctor` is a server command: its flags must follow its name" in (
        capsys.readouterr().err
    )


def test_other_commands_do_not_search_for_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: str) -> None:
        raise AssertionError("looked for entry points")

    monkeypatch.setattr(metadata, "entry_points", fail)
    assert main(["--version"]) == 0
