"""``python -m service serve | worker | migrate | keys``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pydantic import ValidationError

from service import commands
from service.errors import ServiceError
from service.settings import Settings, settings_from


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; a mistake of its user is told in one line."""
    asked = _parser().parse_args(arguments)
    try:
        settings = settings_from(vars(asked))
        return int(asked.run(settings, asked) or 0)
    except ValidationError as error:
        for one in error.errors(include_url=False, include_input=False):
            name = "_".join(str(part) for part in one["loc"]).upper()
            commands.say_error(f"CALIBRD_{name}: {one['msg']}")
        return 2
    except ServiceError as error:
        commands.say_error(error.message)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m service", description="The calibration service."
    )
    flags = argparse.ArgumentParser(add_help=False)
    for name, field in Settings.model_fields.items():
        flags.add_argument(
            f"--{name.replace('_', '-')}",
            dest=name,
            default=argparse.SUPPRESS,
            metavar=name.rpartition("_")[2].upper(),
            help=f"{field.description} (CALIBRD_{name.upper()})",
        )
    verbs = parser.add_subparsers(title="commands", required=True, metavar="command")

    def verb(name: str, run: object, summary: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, parents=[flags], help=summary, description=summary)
        made.set_defaults(run=run)
        return made

    verb("serve", commands.serve, "run the API, with workers beside it")
    worker = verb("worker", commands.work, "run a worker that takes fits from the queues")
    worker.add_argument("--queue", action="append", dest="queues", choices=["fit.cpu", "fit.gpu"])
    worker.add_argument("--device", help="cpu, cuda or cuda:N; by default a GPU if there is one")
    verb("migrate", commands.migrate, "bring the database up to date, and end")
    keys = verb("keys", commands.manage_keys, "make, list, rotate or revoke API keys")
    keys.add_argument("action", choices=["create", "list", "rotate", "revoke"])
    keys.add_argument("id", nargs="?", help="of the key to rotate or revoke")
    keys.add_argument("--workspace", default="default", help="made by `create` if it is new")
    keys.add_argument("--name", default="unnamed", help="what the key is for")
    keys.add_argument("--scopes", default="predict", help="comma list of predict,fit,promote,admin")
    keys.add_argument("--days", type=float, help="how long it is valid; by default until revoked")
    keys.add_argument("--grace-hours", type=float, default=24.0, help="of the key rotated")
    return parser


if __name__ == "__main__":
    sys.exit(main())
