"""Disk cache of loaded maps, used while the service is unavailable."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from calibrators import CalibrationMap, archive
from calibrators.errors import ArchiveError
from calibrd.api.references import Reference
from calibrd.transport.disk_cache import Cache, CacheEntry, write_atomically

SHA256 = re.compile(r"[0-9a-f]{64}")
# far longer than a writer takes to add the entry for a map's bytes
SWEPT_AFTER_SECONDS = 3600.0

_log = logging.getLogger("calibrd")


@dataclass(frozen=True)
class LoadedMap:
    """A loaded version of a calibrator; the service last confirmed it at ``confirmed_at``."""

    number: int
    sha256: str
    model: str | None
    confirmed_at: datetime
    map: CalibrationMap

    @property
    def facts(self) -> dict[str, Any]:
        """All fields except the map itself."""
        return {name: value for name, value in vars(self).items() if name != "map"}


class MapCache:
    """Maps on disk: an entry for each reference, and map files named by their hash.

    Other processes may use the folder at the same time. Files whose hash does not match the
    entry are treated as missing.
    """

    def __init__(self, cache: Cache) -> None:
        self.folder = cache.folder / "maps"

    def read(self, reference: Reference) -> LoadedMap | None:
        """Return the last confirmed map of a reference; None if it is missing or damaged."""
        text = self._entry(reference).read()
        if text is None:
            return None
        try:
            facts = _facts(text)
            content = self._bytes(facts["sha256"]).read_bytes()
        except (OSError, ValueError):
            return None
        if hashlib.sha256(content).hexdigest() != facts["sha256"]:
            _log.info("the cached map of %s is damaged and is not used", reference)
            return None
        try:
            return LoadedMap(**facts, map=archive.load(content))
        except ArchiveError as error:
            _log.info("the cached map of %s cannot be read: %s", reference, error)
            return None

    def write(self, reference: Reference, loaded: LoadedMap, content: bytes | None = None) -> None:
        """Write the entry of a reference, and the map's bytes if ``content`` is given."""
        path = self._bytes(loaded.sha256)
        if content is not None:
            try:
                write_atomically(path, content)
            except OSError as error:
                _log.info("cannot cache the map of %s: %s", reference, error)
                return
        elif not path.exists():
            return
        facts = {**loaded.facts, "confirmed_at": loaded.confirmed_at.isoformat()}
        self._entry(reference).write(json.dumps(facts))
        if content is not None:
            self._sweep()

    def _entry(self, reference: Reference) -> CacheEntry:
        return CacheEntry(self.folder / f"{reference}.json")

    def _bytes(self, sha256: str) -> Path:
        return self.folder / f"{sha256}.map"

    def _sweep(self) -> None:
        """Remove old files that no entry refers to, including files of crashed writers."""
        with contextlib.suppress(OSError):
            old = time.time() - SWEPT_AFTER_SECONDS
            others = [path for path in self.folder.iterdir() if path.suffix != ".json"]
            unused = [path for path in others if path.stat().st_mtime < old]
            named = {self._named(path) for path in self.folder.glob("*.json")} if unused else set()
            for path in unused:
                if path not in named:
                    path.unlink(missing_ok=True)

    def _named(self, entry: Path) -> Path | None:
        try:
            return self._bytes(_facts(entry.read_text(encoding="utf-8"))["sha256"])
        except ValueError:
            return None


def _facts(text: str) -> dict[str, Any]:
    """Parse an entry; raise ValueError if it is malformed."""
    found = json.loads(text)
    match found:
        case {
            "number": int(number),
            "sha256": str(sha256),
            "model": str() | None as model,
            "confirmed_at": str(confirmed),
        } if SHA256.fullmatch(sha256):
            when = datetime.fromisoformat(confirmed)
            if when.tzinfo is None:
                raise ValueError("a time without a time zone")
            return {
                "number": number,
                "sha256": sha256,
                "model": model,
                "confirmed_at": when.astimezone(UTC),
            }
    raise ValueError("not an entry")
