"""Maps in memory, found by ``name@alias`` or ``name@number``.

A version never changes, so its map is never stale. Where an alias points is looked up again
whenever a move was recorded; while the database is down the last known answer is served.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from calibrators import CalibrationMap, archive
from service.core import aliases, versions
from service.core.access import Principal
from service.core.blob_keys import map_key
from service.core.names import NAME
from service.errors import NotFound, ServiceError
from service.storage.blobs import Blobs
from service.storage.database import Database
from service.storage.records import Version
from service.storage.store import Store

_log = structlog.get_logger("calibrd.serving")


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
        self._moved: set[tuple[str, str]] = set()
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
        """See which aliases were moved, by whomever, and load what they point at now.

        One that cannot be loaded goes on with the map it had, and is tried again the next time.
        """
        with self._refreshing:
            with self._database.read() as store:
                last = store.aliases.last_move()
                if last != self._last_move and self._last_move >= 0:
                    moved = store.aliases.moved_since(self._last_move)
                    self._moved |= {(move.calibrator, move.alias) for move in moved}
            with self._lock:
                self._last_move = last
            for calibrator, alias in list(self._moved):
                try:
                    self._follow(calibrator, alias)
                except ServiceError as error:
                    _log.error("alias_not_followed", alias=alias, code=error.code)
                else:
                    self._moved.discard((calibrator, alias))

    def _follow(self, calibrator: str, alias: str) -> None:
        """Serve what a moved alias points at now, if it is served here at all."""
        place = self._aliases.get((calibrator, alias))
        if place is None or place not in self._served:
            return
        with self._database.read() as store:
            there = store.aliases.get(calibrator, alias)
            if there is None:
                return
            version = store.calibrators.version(calibrator, there.version)
        if version is None:
            return
        served = self._read(place, version)
        with self._lock:
            self._keep(place, calibrator, served)

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
