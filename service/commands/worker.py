"""``python -m service worker``."""

from __future__ import annotations

import argparse

from service.commands.opening import prepared
from service.settings import Settings


def work(settings: Settings, asked: argparse.Namespace) -> None:
    """Run a worker until it is interrupted."""
    prepared(settings).close()
    from service.jobs.worker import run_worker  # loads torch

    run_worker(settings, asked.queues, asked.device)
