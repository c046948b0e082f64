"""Write the tables of README.md and docs/ from the code: ``make docs-tables``.

A table stands between ``<!-- table:NAME -->`` and ``<!-- end -->``. With ``--check`` nothing is
written: files whose tables are out of date are listed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path

from calibrators import all_methods
from calibrators.error_codes import ERROR_CODES
from calibrators.losses import Loss
from calibrators.losses.registry import all_losses
from calibrators.metrics.catalogue import all_metrics
from calibrators.registry import all_maps
from calibrators.report.verdict import Verdict
from calibrd.api import Calls
from calibrd.cli import server
from calibrd.cli.arguments import command_parser
from service.app import create_app
from service.cli.arguments import command_parser as server_parser
from service.datasets.formats import all_codecs
from service.settings import PREFIX, Settings

ROOT = Path(__file__).parents[1]
REGION = re.compile(r"(<!-- table:([\w-]+) -->\n).*?(<!-- end -->)", re.S)
KEEPS_CLASS = {True: "yes", False: "no", None: "its base's"}


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; bars in cells are escaped."""
    lines = [_line(head), f"|{'---|' * len(head)}", *map(_line, rows)]
    return "".join(f"{line}\n" for line in lines)


def _line(cells: Sequence[object]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in map(_escaped, cells))


def _escaped(cell: object) -> str:
    return str(cell).replace("|", "\\|")


def names(given: Iterable[str]) -> str:
    """Return names formatted as code, separated by commas."""
    return ", ".join(f"`{one}`" for one in given)


def methods() -> str:
    """List the methods: parameters, whether they keep the predicted class, and their cost."""
    rows = []
    for name, recipe in all_methods().items():
        map_kind = all_maps().get(name)
        kept = KEEPS_CLASS[map_kind.keeps_class] if map_kind else "the winner's"
        parameters = names(field.name for field in fields(recipe)) or "none"
        rows.append((f"`{name}`", recipe.summary, parameters, kept, recipe.cost))
    return table(("name", "what it does", "parameters", "class-preserving", "cost"), rows)


def verdicts() -> str:
    """List the verdicts of a report."""
    return table(("verdict", "meaning"), ((f"`{one}`", one.meaning) for one in Verdict))


def metrics() -> str:
    """List the metrics of a report."""
    rows = (
        (f"`{one.name}`", one.title, "no" if one.interval is None else "yes", one.meaning)
        for one in all_metrics().values()
    )
    return table(("name", "title", "interval", "meaning"), rows)


def losses() -> str:
    """List the training losses and their own parameters."""
    of_all = Loss.hyper_parameters()
    rows = (
        (
            f"`{name}`",
            loss.summary,
            names(one for one in loss.hyper_parameters() if one not in of_all),
        )
        for name, loss in all_losses().items()
    )
    return table(("name", "what it does", "parameters"), rows)


def formats() -> str:
    """List the formats in which arrays are sent."""
    rows = ((one.format, names(one.media_types), one.holds) for one in all_codecs().values())
    return table(("format", "media types", "holds"), rows)


def calls() -> str:
    """List the calls of the SDK's client, with the first lines of their docstrings."""
    found = {
        name: str(one.__doc__).partition("\n")[0].replace("``", "`")
        for kind in reversed(Calls.__mro__)
        for name, one in vars(kind).items()
        if hasattr(one, "flow")
    }
    return table(("call", ""), ((f"`{name}`", told) for name, told in sorted(found.items())))


def commands() -> str:
    """List the commands of the command line, and their own flags."""
    common = _flags(command_parser())
    rows = []
    for name, summary, parser in _commands():
        words = [str(one.metavar) for one in parser._actions if not one.option_strings]
        actions = _server_actions(name) if name in server.COMMANDS else parser._actions
        flags = [one.option_strings[0] for one in actions if one.option_strings]
        own = names(one for one in flags if name in server.COMMANDS or one not in common)
        if name in server.COMMANDS:
            words = [one.metavar or one.dest.upper() for one in actions if not one.option_strings]
            own = ", ".join(filter(None, (own, "[settings](settings.md)")))
        rows.append((f"`{' '.join(['calibrd', name, *map(str, words)])}`", summary, own))
    return table(("command", "does", "flags"), rows)


def command_options() -> str:
    """List the arguments of each command, and finally those of every command but the server's."""
    parser = command_parser()
    common = _flags(parser)
    parts = []
    for name, _, one in _commands():
        if name not in server.COMMANDS:
            own = [action for action in one._actions if not {*action.option_strings} & {*common}]
            parts.append(f"### `calibrd {name}`\n\n{_options(own)}")
    for name in server.COMMANDS:
        if own := _server_actions(name):
            parts.append(f"### `calibrd {name}`\n\n{_options(own)}")
    shared = [action for action in parser._actions if action.option_strings]
    parts.append(f"### Every command but the server's\n\n{_options(shared)}")
    return "\n" + "\n".join(parts)


def _server_actions(name: str) -> list[argparse.Action]:
    """Return the arguments of a command of the server, without the settings."""
    (verbs,) = [one for one in server_parser()._actions if isinstance(one.choices, dict)]
    assert isinstance(verbs.choices, dict)  # noqa: S101
    left_out = {"help", *Settings.model_fields}
    return [one for one in verbs.choices[name]._actions if one.dest not in left_out]


def _commands() -> list[tuple[str, str, argparse.ArgumentParser]]:
    (verbs,) = [one for one in command_parser()._actions if isinstance(one.choices, dict)]
    summaries = {one.dest: str(one.help) for one in verbs._get_subactions()}
    return [(name, summaries[name], parser) for name, parser in verbs.choices.items()]


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    return [one.option_strings[0] for one in parser._actions if one.option_strings]


def _options(actions: Iterable[argparse.Action]) -> str:
    rows = []
    for one in actions:
        value = str(
            one.metavar or ("|".join(map(str, one.choices)) if one.choices else one.dest.upper())
        )
        if "|" in value:  # which would need a backslash in a table
            value = f"{{{value.replace('|', ',')}}}"
        words = [", ".join(one.option_strings), "" if one.nargs == 0 else value]
        rows.append((f"`{' '.join(filter(None, words))}`", one.help))
    return table(("argument", "meaning"), rows)


def settings() -> str:
    """List the settings of the service."""
    rows = []
    for name, one in Settings.model_fields.items():
        default = "empty" if one.default == "" else f"`{one.default}`"
        rows.append((f"`{PREFIX}{name.upper()}`", default, one.description))
    return table(("variable", "default", "meaning"), rows)


def error_codes() -> str:
    """List the error codes."""
    rows = (
        (f"`{code}`", row.status or "", row.meaning, row.hint) for code, row in ERROR_CODES.items()
    )
    return table(("code", "status", "meaning", "what to do"), rows)


def routes() -> str:
    """List the routes of the API, from its OpenAPI document."""
    with tempfile.TemporaryDirectory() as folder:
        paths = create_app(Settings(data_dir=Path(folder), workers=0)).openapi()["paths"]
    rows = (
        (f"`{method.upper()} {path}`", operation["summary"])
        for path, operations in paths.items()
        for method, operation in operations.items()
        if method != "parameters"
    )
    return table(("route", "what it does"), rows)


def make_targets() -> str:
    """List the targets of the Makefile that ``make help`` lists."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    rows = re.findall(r"^([a-z-]+):.*?## (.+)$", text, re.M)
    return table(("command", "what it does"), ((f"`make {name}`", told) for name, told in rows))


TABLES: dict[str, Callable[[], str]] = {
    "methods": methods,
    "verdicts": verdicts,
    "metrics": metrics,
    "losses": losses,
    "formats": formats,
    "calls": calls,
    "commands": commands,
    "command-options": command_options,
    "settings": settings,
    "error-codes": error_codes,
    "routes": routes,
    "make-targets": make_targets,
}


def filled(text: str) -> str:
    """Return a document with its tables rewritten."""
    return REGION.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


def main(check: bool) -> int:
    """Write the tables, or list the files whose tables are out of date."""
    stale = []
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ):
        text = path.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            stale.append(path.relative_to(ROOT))
            if not check:
                path.write_text(new, encoding="utf-8")
    for one in stale:
        sys.stderr.write(f"{one}: {'out of date: run make docs-tables' if check else 'written'}\n")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
