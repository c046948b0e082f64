"""The command line: parser, exit codes and error handling."""

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
    error_document,
    escape_unencodable,
    finish,
    write_stderr,
)

ERROR = 3  # 0 to 2 are the gate's decisions
BROKEN_PIPE = 141

Command = Callable[[CommandContext], int | None]


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; print errors in one or two lines."""
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    output = Output(json="--json" in words, quiet="--quiet" in words or "-q" in words)
    escape_unencodable()
    try:
        code = _run(words, output)
        finish()
    except KeyboardInterrupt as stop:
        if output.json:
            output.error(error_document(stop))
        return INTERRUPTED
    except ClosedPipe:
        return BROKEN_PIPE
    except NotWritten as error:
        Output().error(error_document(error))
        return ERROR
    except Exception as error:  # noqa: BLE001 - printed; --traceback shows where it came from
        if "--traceback" in words:
            write_stderr(traceback.format_exc())
        output.error(error_document(error))
        return ERROR
    return code


def _run(words: list[str], output: Output) -> int:
    parser = command_parser()
    try:
        flags, rest = parser.parse_known_args(words)
    except SystemExit as end:  # --help has been printed
        return int(end.code or 0)
    if flags.show_version:
        output.answer({"version": __version__}, f"calibrd {__version__}")
        return 0
    if "run" not in flags:
        parser.error("a command is required: --help lists them")
    if rest and not flags.takes_all:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    command: Command = flags.run
    with _notes(output):
        return command(CommandContext(flags, output, rest)) or 0


@contextmanager
def _notes(output: Output) -> Iterator[None]:
    """Print warnings and log messages of the packages as notes."""
    shown = set()  # each fold of a fit may raise the same warning

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, UserWarning) and str(message) not in shown:
            shown.add(str(message))
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
    """Action that stores the value of an option and rejects repeated options."""

    was_given = False

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if self.was_given and option_string is not None:
            parser.error(f"{option_string} was given twice, but takes one value")
        self.was_given = True
        setattr(namespace, self.dest, values)


class _Parser(argparse.ArgumentParser):
    """Argument parser that raises CommandError, so that usage errors look like other errors."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for name in (None, "store"):
            self.register("action", name, _Once)

    def error(self, message: str) -> NoReturn:
        raise CommandError("usage", message, f"{self.prog} --help lists its arguments")


def command_parser() -> argparse.ArgumentParser:
    """Return the parser for all commands and their flags."""
    common = _common_flags()
    parser = _Parser(
        prog="calibrd",
        description="Calibrated probabilities: fit, judge, promote, apply, gate.",
        epilog="`calibrd COMMAND --help` lists the arguments of a command. Exit codes: 0 done "
        "(gate: pass), 1 gate: fail, 2 gate: insufficient data, 3 error, 130 Ctrl-C.",
        parents=[common],
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", dest="show_version", action="store_true", help="print the version and exit"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)

    def add_command(
        name: str, run: Command, summary: str, **options: Any
    ) -> argparse.ArgumentParser:
        takes_all = options.pop("takes_all", False)
        made: argparse.ArgumentParser = commands.add_parser(
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
        module.add_to(add_command)
    return parser


def _common_flags() -> _Parser:
    flags = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    group = flags.add_argument_group("common options")
    group.add_argument(
        "--json", action="store_true", help="print one JSON document to stdout, even on error"
    )
    group.add_argument(
        "--quiet", "-q", action="store_true", help="suppress notes and progress bars"
    )
    group.add_argument("--url", help="URL of the service [CALIBRD_URL, or http://127.0.0.1:8000]")
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help="API key; prefer CALIBRD_API_KEY, because other users can see command lines",
    )
    group.add_argument(
        "--retry-seconds",
        type=seconds,
        metavar="SECONDS",
        help="how long to retry while the service is unavailable [5; fit: 30]",
    )
    group.add_argument(
        "--traceback", action="store_true", help="print the traceback of an error, for bug reports"
    )
    return flags
