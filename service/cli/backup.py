"""``python -m service backup`` and ``restore``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from service.cli.output import say, say_note
from service.maintenance.archive_file import Manifest
from service.maintenance.backup import back_up, restore
from service.settings import Settings
from service.storage.blob_keys import BlobKind


def write_backup(settings: Settings, options: argparse.Namespace) -> None:
    """Back up the embedded database and its blobs while the service is running."""
    began = time.monotonic()
    target = Path(options.file).absolute()
    made = back_up(settings, target, force=options.force, keep_going=options.keep_going)
    for one in made.damaged:
        say_note(f"warning: left out: {one}")
    say(f"backed up {_counts(made)} in {time.monotonic() - began:.1f} s: {options.file}")


def read_backup(settings: Settings, options: argparse.Namespace) -> None:
    """Restore a backup into an empty data directory."""
    began = time.monotonic()
    made = restore(settings, Path(options.file))
    for one in made.damaged:
        say_note(f"warning: not in this backup: {one}")
    say(f"restored {_counts(made)} in {time.monotonic() - began:.1f} s: {settings.data_dir}")


def _counts(made: Manifest) -> str:
    versions, datasets = (made.counts.get(kind, 0) for kind in (BlobKind.MAP, BlobKind.DATASET))
    return f"{versions} versions, {datasets} datasets, {made.bytes} bytes"
