"""Parse the command line, run commands and report usage errors."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable, Sequence

from pydantic import ValidationError

from service import logs
from service.cli import PROGRAM
from service.cli.commands import (
    list_workers,
    migrate,
    read_backup,
    sweep_up,
    work,
    write_backup,
)
from service.cli.doctor import doctor
from service.cli.keys import manage_keys
from service.cli.open_store import failures_explained
from service.cli.output import say_error, say_note
from service.cli.serve import serve
from service.errors import ServiceError
from service.fits.service import QUEUES
from service.settings import PREFIX, Settings, settings_from, unknown_variables
from service.worker.supervisor import SUPERVISOR

MISUSED = 2

# the return value, if any, is the exit status
Command = Callable[[Settings, argparse.Namespace], int | None]


def run(arguments: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Run a command and return its exit status; report usage errors in one line."""
    options = command_parser(program).parse_args(arguments)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(logs.PlainFormatter())
    _warn_of_unknown_variables()
    try:
        with failures_explained():
            code: int = options.run(settings_from(vars(options)), options) or 0
    except ValidationError as error:
        for one in error.errors(include_url=False, include_input=False):
            name = str(one["loc"][0])
            rule = one["msg"].removeprefix("Value error, ")
            say_error(f"{_flag(name)} ({PREFIX}{name.upper()}): {rule}")
        return MISUSED
    except ServiceError as error:
        say_error(error.message)
        return MISUSED
    return code


def _warn_of_unknown_variables() -> None:
    if SUPERVISOR in os.environ:
        return  # the supervisor has warned already
    for name, meant in unknown_variables(os.environ).items():
        hint = f": did you mean {meant}?" if meant else ", and is ignored"
        say_note(f"warning: {name} is not a setting{hint}")


def command_parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """Return the parser of all commands and their flags."""
    parser = argparse.ArgumentParser(
        prog=program,
        description="The calibration service.",
        epilog=f"`{program} COMMAND --help` lists the options of a command.",
    )
    verbs = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    settings = _settings_flags()

    def verb(name: str, run: Command, summary: str, words: str = "") -> argparse.ArgumentParser:
        made = verbs.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            usage=f"%(prog)s [options] {words}".rstrip(),
            parents=[settings],
        )
        made.set_defaults(run=run)
        return made

    verb("serve", serve, "run the API together with workers")
    _add_worker_flags(verb("worker", work, "run a worker that takes fits from the queue"))
    listing = verb("workers", list_workers, "list the live workers")
    listing.add_argument("--here", action="store_true", help="list only workers on this machine")
    migrating = verb("migrate", migrate, "upgrade the database to the current schema, and exit")
    migrating.add_argument(
        "--adopt",
        action="store_true",
        help="bind the blob store to this database, even if it belongs to another",
    )
    managing = "create, list, rotate or revoke API keys"
    _add_key_flags(verb("keys", manage_keys, managing, "ACTION [ID]"))
    writing = "back up the embedded database and its blobs while the service is running"
    _add_backup_flags(verb("backup", write_backup, writing, "FILE.tar"))
    reading = verb(
        "restore", read_backup, "restore a backup into an empty data directory", "FILE.tar"
    )
    reading.add_argument("file", help="file written by `backup`")
    checking = verb("doctor", doctor, "check all stored data, and report problems")
    checking.add_argument("--json", action="store_true", help="print one JSON object per line")
    sweeping = verb("sweep", sweep_up, "delete orphaned blobs")
    sweeping.add_argument("--dry-run", action="store_true", help="only list the blobs")
    sweeping.add_argument(
        "--adopt",
        action="store_true",
        help="take over a store that was last swept for another database",
    )
    return parser


def _settings_flags() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(add_help=False)
    group = flags.add_argument_group(
        "settings",
        f"All can also be set in the environment ({PREFIX}PORT for --port). Flags take precedence.",
    )
    for name, field in Settings.model_fields.items():
        default = "" if field.default == "" else f" [{field.default}]"
        group.add_argument(
            _flag(name),
            dest=name,
            default=argparse.SUPPRESS,
            metavar=name.rpartition("_")[2].upper(),
            help=f"{field.description}{default}",
        )
    return flags


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _add_worker_flags(worker: argparse.ArgumentParser) -> None:
    worker.add_argument(
        "--queue",
        action="append",
        dest="queues",
        choices=QUEUES,
        help=f"queue to serve (repeatable); by default {QUEUES[0]}, or both queues "
        "if there is a GPU",
    )
    worker.add_argument("--device", help="cpu, cuda or cuda:N; by default a GPU if there is one")


def _add_backup_flags(backup: argparse.ArgumentParser) -> None:
    backup.add_argument("file", help="file to write")
    backup.add_argument("--force", action="store_true", help="replace the file if it exists")
    backup.add_argument("--keep-going", action="store_true", help="skip and list damaged blobs")


def _add_key_flags(keys: argparse.ArgumentParser) -> None:
    actions = ("create", "list", "rotate", "revoke")
    keys.add_argument("action", choices=actions, metavar="ACTION", help=", ".join(actions))
    keys.add_argument("id", nargs="?", help="id of the key to rotate or revoke")
    keys.add_argument(
        "--workspace", default="default", help="workspace, added by `create` if it is new [default]"
    )
    keys.add_argument(
        "--name", default="unnamed", help="name that describes the key's purpose [unnamed]"
    )
    keys.add_argument(
        "--scopes", action="append", help="comma-separated: predict,fit,promote,admin [predict]"
    )
    keys.add_argument(
        "--days", type=float, help="lifetime of the key in days; by default it never expires"
    )
    keys.add_argument(
        "--grace-hours",
        metavar="HOURS",
        type=float,
        default=24.0,
        help="hours for which the old key stays valid after `rotate` [24]",
    )
