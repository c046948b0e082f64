"""``python -m service sweep``."""

from __future__ import annotations

import argparse
from contextlib import closing

from service.cli.open_store import existing
from service.cli.output import say
from service.errors import Invalid
from service.maintenance.sweep import sweep
from service.settings import HOUR, Settings
from service.storage.blobs import Blobs


def sweep_up(settings: Settings, options: argparse.Namespace) -> None:
    """Delete orphans, or only list them."""
    if not settings.sweep_hours:
        raise Invalid(
            "no_grace", "--sweep-hours is 0, which keeps all blobs: set the minimum age of orphans"
        )
    with closing(existing(settings)) as database:
        swept = sweep(
            database,
            Blobs(settings.blobs),
            older_than=settings.sweep_hours * HOUR,
            dry_run=options.dry_run,
            adopt=options.adopt,
            on_orphan=lambda key: say(f"{'would delete' if options.dry_run else 'deleting'} {key}"),
        )
    say(swept.summary())
