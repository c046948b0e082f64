"""``python -m service migrate``."""

from __future__ import annotations

import argparse

from service.cli.open_store import prepared
from service.cli.output import say
from service.settings import Settings


def migrate(settings: Settings, _options: argparse.Namespace) -> None:
    """Bring the database up to date."""
    prepared(settings).close()
    say("the database is up to date")
