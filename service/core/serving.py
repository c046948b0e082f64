"""Maps in memory, found by ``name@alias`` or ``name@number``.

A version never changes, so its map is never stale. Where an alias points is looked up again
whenever a move was recorded; while the database is down the last known answer is served.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from calibrators import CalibrationMap, archive
from service.core import aliases, versions
from service.core.access import Principal
from service.core.blob_keys import map_key
from service.core.names import NAME
from service.errors import NotFound
from service.storage.blobs import Blobs
from service.storage.database import Database
from service.storage.records import Version
from service.storage.store import Store


@dataclass(frozen=True)
class Served:
    """A version ready to be applied."""

    calibrator: str
    number: int
    map: CalibrationMap
    sha256: str
    model: str | None


class Place(NamedTuple):
    """Where a map is looked for."""

    workspace: str
    name: str
    ref: str


class Maps:
    """The maps of this process; the least recently loaded ones give way."""

    def __init__(self, database: Database, blobs: Blobs, capacity: int) -> None:
        self._database = database
        self._blobs = blobs
        self._capacity = capacity
        self._served: OrderedDict[Place, Served] = OrderedDict()
        self._aliases: dict[tuple[str, str], Place] = {}
        self._last_move = -1
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()

    def __len__(self) -> int:
        return len(self._served)

    def find(self, principal: Principal, name: str, ref: str) -> Served | None:
        """A map that is in memory already."""
        return self._served.get(Place(principal.workspace, name, ref))

    def load(self, principal: Principal, name: str, ref: str) -> Served:
        """A map from the database and the blobs, kept in memory from now on."""
        place = Place(principal.workspace, name, ref)
        while True:
            with self._database.read() as store:
                move = store.aliases.last_move()
                version = _resolve(store, principal, name, ref)
            served = self._read(place, version)
            with self._lock:
                # the alias may have moved while the map was read
                if not ref.isdigit() and move < self._last_move:
                    continue
                self._keep(place, version.calibrator, served)
                return served

    def refresh(self) -> None:
        """See which aliases were moved, by whomever, and load what they point at now."""
        with self._refreshing, self._database.read() as store:
            last = store.aliases.last_move()
            if last == self._last_move:
                return
            moved = store.aliases.moved_since(self._last_move) if self._last_move >= 0 else []
            for calibrator, alias in {(move.calibrator, move.alias) for move in moved}:
                place = self._aliases.get((calibrator, alias))
                there = store.aliases.get(calibrator, alias)
                if place is None or there is None:
                    continue
                version = store.calibrators.version(calibrator, there.version)
                if version is None:
                    continue
                served = self._read(place, version)
                with self._lock:
                    self._keep(place, calibrator, served)
            with self._lock:
                self._last_move = last

    def _keep(self, place: Place, calibrator: str, served: Served) -> None:
        self._served[place] = served
        if not place.ref.isdigit():
            self._aliases[calibrator, place.ref] = place
        while len(self._served) > self._capacity:
            self._served.popitem(last=False)

    def _read(self, place: Place, version: Version) -> Served:
        """The map of a version; its bytes are checked against their hash."""
        content = self._blobs.get(map_key(place.workspace, version.map_sha256), version.map_sha256)
        fitted = archive.load(content)
        return Served(place.name, version.number, fitted, version.map_sha256, version.model)


def _resolve(store: Store, principal: Principal, name: str, ref: str) -> Version:
    """The version that a number or an alias means."""
    if not NAME.fullmatch(ref):
        raise NotFound("no_such_alias", "there is no such version or alias")
    if ref.isdigit():
        return versions.find(store, principal, name, int(ref))
    alias = aliases.find(store, principal, name, ref)
    return versions.find(store, principal, name, alias.version)
