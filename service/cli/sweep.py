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


def sweep_up(settings: Settings, asked: argparse.Namespace) -> None:
    """Delete orphans, or only name them."""
    if not settings.sweep_hours:
        raise Invalid(
            "no_grace", "--sweep-hours is 0, which keeps all: say from what age on to delete"
        )
    with closing(existing(settings)) as database:
        swept = sweep(
            database,
            Blobs(settings.blobs),
            older_than=settings.sweep_hours * HOUR,
            dry_run=asked.dry_run,
            adopt=asked.adopt,
            tell=lambda key: say(f"{'would delete' if asked.dry_run else 'deletes'} {key}"),
        )
    say(swept.summary())
