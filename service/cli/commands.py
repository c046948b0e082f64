"""Short commands: ``migrate``, ``worker``, ``workers``, ``sweep``, ``backup`` and ``restore``."""

from __future__ import annotations

import argparse
import time
from contextlib import closing
from pathlib import Path

from service.cli.open_store import blobs_for, database_explained, existing, prepared
from service.cli.output import minute, say, say_note
from service.errors import Invalid
from service.fits.service import WORKER_IS_ALIVE
from service.maintenance.archive_file import Manifest
from service.maintenance.backup import back_up, restore
from service.maintenance.sweep import sweep
from service.settings import HOUR, Settings
from service.storage.blob_keys import BlobKind
from service.storage.database import Database
from service.worker.identity import is_of_this_machine


def migrate(settings: Settings, options: argparse.Namespace) -> None:
    """Upgrade the database to the current schema, and bind it to its blob store."""
    prepared(settings, adopt=options.adopt).close()
    say("the database is up to date")


def work(settings: Settings, options: argparse.Namespace) -> None:
    """Run a worker until it is interrupted."""
    prepared(settings).close()
    from service.worker.process import run_worker  # loads torch

    run_worker(settings, options.queues, options.device)


def list_workers(settings: Settings, options: argparse.Namespace) -> int:
    """List the live workers without changing the database; return 1 if there are none."""
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
        say_note(f"no live workers{' on this machine' if options.here else ''}")
    return 0 if found else 1


def sweep_up(settings: Settings, options: argparse.Namespace) -> None:
    """Delete orphaned blobs; with ``--dry-run``, only list them."""
    if not settings.sweep_hours:
        raise Invalid(
            "no_grace",
            "--sweep-hours is 0, which keeps all blobs: set it to the minimum age of orphans",
        )
    with closing(existing(settings)) as database:
        swept = sweep(
            database,
            blobs_for(settings, database),
            older_than=settings.sweep_hours * HOUR,
            dry_run=options.dry_run,
            adopt=options.adopt,
            on_orphan=lambda key: say(f"{'would delete' if options.dry_run else 'deleting'} {key}"),
        )
    say(f"{'would delete' if options.dry_run else 'deleted'} {swept.summary()}")


def write_backup(settings: Settings, options: argparse.Namespace) -> None:
    """Back up the embedded database and its blobs while the service is running."""
    began = time.monotonic()
    target = Path(options.file).absolute()
    made = back_up(settings, target, force=options.force, keep_going=options.keep_going)
    for one in made.damaged:
        say_note(f"warning: skipped: {one}")
    say(f"backed up {_counts(made)} in {time.monotonic() - began:.1f} s: {options.file}")


def read_backup(settings: Settings, options: argparse.Namespace) -> None:
    """Restore a backup into an empty data directory."""
    began = time.monotonic()
    made = restore(settings, Path(options.file))
    for one in made.damaged:
        say_note(f"warning: missing from this backup: {one}")
    say(f"restored {_counts(made)} in {time.monotonic() - began:.1f} s: {settings.data_dir}")


def _counts(made: Manifest) -> str:
    versions, datasets = (made.counts.get(kind, 0) for kind in (BlobKind.MAP, BlobKind.DATASET))
    return f"{versions} versions, {datasets} datasets, {made.bytes} bytes"
