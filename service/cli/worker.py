"""``python -m service worker``."""

from __future__ import annotations

import argparse

from service.cli.open_store import prepared
from service.settings import Settings


def work(settings: Settings, options: argparse.Namespace) -> None:
    """Run a worker until it is interrupted."""
    prepared(settings).close()
    from service.worker.process import run_worker  # loads torch

    run_worker(settings, options.queues, options.device)
