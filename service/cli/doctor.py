"""The command ``python -m service doctor``."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing

from service.cli.open_store import database_explained, existing, existing_blobs
from service.cli.output import say, say_note
from service.maintenance.database_damage import damage_of
from service.maintenance.doctor import Doctor
from service.maintenance.doctor_messages import Finding
from service.settings import HOUR, Settings
from service.storage.database import embedded_file
from service.storage.upgrade import check_exists

UNHEALTHY = 1
PROGRESS_EVERY = 100


def doctor(settings: Settings, options: argparse.Namespace) -> int:
    """Check all stored data; return 1 if there are findings."""
    with database_explained():
        file = embedded_file(settings.database)
    if file is not None:
        check_exists(file)
    damage = list(damage_of(file)) if file is not None else []
    for finding in damage:
        _say(finding, options)
    counts: dict[str, int] = {"findings": len(damage)}
    if not damage:  # otherwise any of the other checks could fail
        with closing(existing(settings)) as database:
            check = Doctor(
                database,
                existing_blobs(settings),
                orphan_seconds=(settings.sweep_hours or 24) * HOUR,
                progress=_Progress(),
            )
            count = 0
            for finding in check.findings():
                count += 1
                _say(finding, options)
        counts = {**check.checked, "orphan_blobs": check.orphans, "findings": count}
    if options.json:
        say(json.dumps({"code": "summary", **counts}))
    else:
        say(", ".join(f"{number} {what.replace('_', ' ')}" for what, number in counts.items()))
        if counts.get("orphan_blobs"):
            say_note(
                "orphaned blobs are harmless: workers delete them every hour, "
                "and `sweep` does so on demand"
            )
    return UNHEALTHY if counts["findings"] else 0


def _say(finding: Finding, options: argparse.Namespace) -> None:
    say(json.dumps(finding._asdict()) if options.json else _line(finding))


def _line(finding: Finding) -> str:
    return f"{finding.code}: {finding.subject}: {finding.problem}; {finding.advice}"


class _Progress:
    """A progress display for terminals."""

    def __init__(self) -> None:
        self._shown = 0

    def __call__(self, checked: int) -> None:
        if checked >= self._shown + PROGRESS_EVERY and sys.stderr.isatty():
            self._shown = checked
            say_note(f"{checked} checked")
