"""``python -m service workers``."""

from __future__ import annotations

import argparse
from contextlib import closing

from service.cli.open_store import database_explained
from service.cli.output import minute, say, say_note
from service.fits.service import WORKER_IS_ALIVE
from service.settings import Settings
from service.storage.database import Database
from service.worker.identity import is_of_this_machine


def list_workers(settings: Settings, options: argparse.Namespace) -> int:
    """List the live workers; return 1 if there are none. The database is only read."""
    with (
        database_explained(),
        closing(Database(settings.database)) as database,
        database.read() as store,
    ):
        alive = store.workers.alive(WORKER_IS_ALIVE)
    found = [one for one in alive if not options.here or is_of_this_machine(one.id)]
    for one in found:
        started = f"since {minute(one.started_at)}"
        say("  ".join((one.id, ",".join(one.queues), one.device, started)))
    if not found:
        say_note(f"no worker {'on this machine ' if options.here else ''}is alive")
    return 0 if found else 1
