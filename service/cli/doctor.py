"""``python -m service doctor``."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing

from service.cli.open_store import existing
from service.cli.output import say, say_note
from service.maintenance.doctor import Doctor
from service.maintenance.doctor_messages import Finding
from service.settings import HOUR, Settings
from service.storage.blobs import Blobs

UNHEALTHY = 1
TOLD_EVERY = 100


def doctor(settings: Settings, asked: argparse.Namespace) -> int:
    """Check all that is stored; the exit code says whether all is well."""
    with closing(existing(settings)) as database:
        looking = Doctor(
            database,
            Blobs(settings.blobs),
            orphan_seconds=(settings.sweep_hours or 24) * HOUR,
            progress=_Progress(),
        )
        count = 0
        for finding in looking.findings():
            count += 1
            say(json.dumps(finding._asdict()) if asked.json else _line(finding))
    seen = {**looking.seen, "orphan_blobs": looking.orphans, "findings": count}
    if asked.json:
        say(json.dumps({"code": "summary", **seen}))
    else:
        say(", ".join(f"{number} {what.replace('_', ' ')}" for what, number in seen.items()))
        if looking.orphans:
            say_note("orphan blobs harm nothing; `sweep` deletes them, as workers do every hour")
    return UNHEALTHY if count else 0


def _line(finding: Finding) -> str:
    return f"{finding.code}: {finding.subject}: {finding.problem}; {finding.advice}"


class _Progress:
    """Lets a person at a terminal see that it goes on."""

    def __init__(self) -> None:
        self._told = 0

    def __call__(self, seen: int) -> None:
        if seen >= self._told + TOLD_EVERY and sys.stderr.isatty():
            self._told = seen
            say_note(f"{seen} looked at")
