"""The command line: its flags, its exit codes, and what its user did wrong."""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from calibrd import __version__
from calibrd.cli import INTERRUPTED, aliases, apply, demo, fit, gate, report, server
from calibrd.cli import list as listing
from calibrd.cli.context import CommandContext, seconds
from calibrd.cli.output import (
    ClosedPipe,
    CommandError,
    NotWritten,
    Output,
    finish,
    take_any_text,
    tell,
    told_of,
)

TROUBLE = 3  # below are the gate's verdicts
BROKEN_PIPE = 141

Command = Callable[[CommandContext], int | None]


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and give its exit code; a trouble is told in a line or two."""
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    output = Output(json="--json" in given, quiet="--quiet" in given or "-q" in given)
    take_any_text()
    try:
        code = _run(given, output)
        finish()
    except KeyboardInterrupt as stop:
        if output.json:
            output.error(told_of(stop))
        return INTERRUPTED
    except ClosedPipe:
        return BROKEN_PIPE
    except NotWritten as error:
        Output().error(told_of(error))
        return TROUBLE
    except Exception as error:  # noqa: BLE001 - a user is told in a line, a bug by --traceback
        if "--traceback" in given:
            tell(traceback.format_exc())
        output.error(told_of(error))
        return TROUBLE
    return code


def _run(given: list[str], output: Output) -> int:
    parser = command_parser()
    try:
        asked, rest = parser.parse_known_args(given)
    except SystemExit as end:  # --help has been printed
        return int(end.code or 0)
    if asked.tell_version:
        output.answer({"version": __version__}, f"calibrd {__version__}")
        return 0
    if "run" not in asked:
        parser.error("say what to do: one of the commands that --help lists")
    if rest and not asked.takes_all:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    command: Command = asked.run
    with _notes(output):
        return command(CommandContext(asked, output, rest)) or 0


@contextmanager
def _notes(output: Output) -> Iterator[None]:
    """Warnings and log lines of the packages as notes."""

    told = set()  # every fold of a fit may warn of the same

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, UserWarning) and str(message) not in told:
            told.add(str(message))
            output.note(f"warning: {message}")

    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: output.note(f"warning: {record.getMessage()}")  # type: ignore[method-assign]
    logger = logging.getLogger("calibrd")
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = show
            yield
    finally:
        logger.removeHandler(handler)


class _Once(argparse.Action):
    """Store a value; refuse a second one, of which the first would be lost."""

    was_given = False

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if self.was_given and option_string is not None:
            parser.error(f"{option_string} was given twice: it takes one value")
        self.was_given = True
        setattr(namespace, self.dest, values)


class _Parser(argparse.ArgumentParser):
    """A parser for one command line, whose errors are told as all others are."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for name in (None, "store"):
            self.register("action", name, _Once)

    def error(self, message: str) -> NoReturn:
        raise CommandError("usage", message, f"{self.prog} --help lists what it takes")


def command_parser() -> argparse.ArgumentParser:
    """All commands and their flags."""
    common = _common_flags()
    parser = _Parser(
        prog="calibrd",
        description="Calibrated probabilities: fit, judge, promote, apply, gate.",
        epilog="`calibrd COMMAND --help` lists what a command takes. Exit codes: 0 done (gate: "
        "pass), 1 gate: fail, 2 gate: insufficient data, 3 any trouble, 130 Ctrl-C.",
        parents=[common],
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", dest="tell_version", action="store_true", help="print the version, and end"
    )
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)

    def verb(name: str, run: Command, summary: str, **options: Any) -> argparse.ArgumentParser:
        takes_all = options.pop("takes_all", False)
        made: argparse.ArgumentParser = verbs.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            allow_abbrev=False,
            add_help=not takes_all,
            parents=[] if takes_all else [common],
            **options,
        )
        made.set_defaults(run=run, takes_all=takes_all)
        return made

    for module in (demo, fit, apply, gate, report, aliases, listing, server):
        module.add_to(verb)
    return parser


def _common_flags() -> _Parser:
    flags = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    group = flags.add_argument_group("for every command")
    group.add_argument(
        "--json", action="store_true", help="answer with one JSON document on stdout, errors too"
    )
    group.add_argument("--quiet", "-q", action="store_true", help="no notes and no progress bars")
    group.add_argument("--url", help="of the service [CALIBRD_URL, or http://127.0.0.1:8000]")
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help="better set CALIBRD_API_KEY: others on a machine can read what a command is given",
    )
    group.add_argument(
        "--patience",
        type=seconds,
        metavar="SECONDS",
        help="how long to try again while the service is away [5, fit: 30]",
    )
    group.add_argument(
        "--traceback", action="store_true", help="show where an error came from, for bug reports"
    )
    return flags
