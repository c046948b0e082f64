"""Maps in memory, found by ``name@alias`` or ``name@number``.

A version never changes, so its map is never stale. Where the aliases in use point is looked up
every second or so; while the database is down the last known answer is served.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import structlog

from calibrators import CalibrationError, CalibrationMap, archive
from service.access.permissions import Principal
from service.errors import NotFound, ServiceError
from service.names import NAME
from service.registry import service as versions
from service.registry.aliases import service as aliases
from service.storage.blob_keys import map_key
from service.storage.blobs import Blobs
from service.storage.database import Database
from service.storage.records import Alias, Version
from service.storage.store import Store

MAP_OVERHEAD = 2048  # of a small map, beside its arrays and names
PLACE_OVERHEAD = 1024  # of a name under which a map is found

_log = structlog.get_logger("calibrd.serving")


@dataclass(frozen=True)
class Served:
    """A version ready to be applied."""

    calibrator: str
    number: int
    map: CalibrationMap
    sha256: str
    model: str | None
    id: str = ""
    bytes: int = 0


class CacheKey(NamedTuple):
    """Where a map is looked for."""

    workspace: str
    name: str
    ref: str


class Maps:
    """The maps of this process: at most ``max_bytes``.

    Beyond it the workspace that takes most loses the map that it loaded first: whoever loads many
    drops none of the others. A version is held once, under however many aliases and its number it
    is asked for.
    """

    def __init__(self, database: Database, blobs: Blobs, max_bytes: int) -> None:
        self._database = database
        self._blobs = blobs
        self._max_bytes = max_bytes
        self._served: dict[CacheKey, Served] = {}
        self._versions: dict[str, Served] = {}
        self._places: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._aliases: dict[CacheKey, Alias] = {}
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._turns: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._versions)

    @property
    def bytes(self) -> int:
        """Return how many bytes the maps in memory take, and the names they are found under."""
        return self._bytes.total()

    def find(self, principal: Principal, name: str, ref: str) -> Served | None:
        """A map that is in memory already."""
        return self._served.get(CacheKey(principal.workspace, name, ref))

    def load(self, principal: Principal, name: str, ref: str) -> Served:
        """A map from the database and the blobs, kept in memory from now on."""
        place = CacheKey(principal.workspace, name, ref)
        with self._turn_of(principal.workspace):
            with self._database.read() as store:
                alias, version = _resolve(store, principal, name, ref)
            served = self._read(place, version)
            self._keep(place, alias, served)
        return served

    def _turn_of(self, workspace: str) -> threading.Lock:
        """Return the lock under which maps of a workspace are loaded, one at a time."""
        with self._lock:
            return self._turns.setdefault(workspace, threading.Lock())

    def refresh(self) -> None:
        """See which aliases were moved, by whomever, and load what they point at now.

        One that cannot be loaded goes on with the map it had, and is tried again the next time.
        """
        with self._refreshing:
            known = dict(self._aliases)
            with self._database.read() as store:
                used = sorted({(alias.calibrator, alias.name) for alias in known.values()})
                now = {(one.calibrator, one.name): one for one in store.aliases.several(used)}
            for place, alias in known.items():
                there = now.get((alias.calibrator, alias.name))
                if there is not None and there.revision != alias.revision:
                    self._follow(place, there)

    def _follow(self, place: CacheKey, alias: Alias) -> None:
        """Serve what a moved alias points at now."""
        try:
            with self._database.read() as store:
                version = store.calibrators.version(alias.calibrator, alias.version)
            if version is not None:
                self._keep(place, alias, self._read(place, version))
        except (ServiceError, CalibrationError) as error:
            _log.error("alias_not_followed", alias=alias.name, code=error.code)

    def _keep(self, place: CacheKey, alias: Alias | None, served: Served) -> None:
        with self._lock:
            self._drop(place)
            self._served[place] = served
            self._bytes[place.workspace] += PLACE_OVERHEAD
            if served.id not in self._versions:
                self._versions[served.id] = served
                self._bytes[place.workspace] += served.bytes
            self._places[served.id] += 1
            if alias is not None:
                self._aliases[place] = alias
            while len(self._served) > 1 and self.bytes > self._max_bytes:
                largest = max(self._bytes, key=self._bytes.__getitem__)
                self._drop(next(one for one in self._served if one.workspace == largest))

    def _drop(self, place: CacheKey) -> None:
        """Forget a place, and its version if no other place needs it."""
        self._aliases.pop(place, None)
        gone = self._served.pop(place, None)
        if gone is None:
            return
        self._bytes[place.workspace] -= PLACE_OVERHEAD
        self._places[gone.id] -= 1
        if not self._places[gone.id]:
            self._bytes[place.workspace] -= self._versions[gone.id].bytes
            del self._places[gone.id], self._versions[gone.id]
        if not self._bytes[place.workspace]:
            del self._bytes[place.workspace]

    def _read(self, place: CacheKey, version: Version) -> Served:
        """Return a version's map, from memory or from bytes checked against their hash."""
        id = f"{version.calibrator}@{version.number}"
        known = self._versions.get(id)
        if known is not None:
            return known
        key = map_key(place.workspace, version.id, version.map_sha256)
        content = self._blobs.get(key, version.map_sha256)
        fitted = _without_info(archive.load(content))
        return Served(
            place.name,
            version.number,
            fitted,
            version.map_sha256,
            version.model,
            id,
            MAP_OVERHEAD + size_of(fitted),
        )


def _without_info(fitted: CalibrationMap) -> CalibrationMap:
    """Return a map without what is known of its fit, which no prediction needs."""
    inner: dict[str, Any] = {
        name: _without_info(value)
        for name, value in vars(fitted).items()
        if isinstance(value, CalibrationMap)
    }
    return replace(fitted, fit_info={}, **inner)


def size_of(value: Any) -> int:
    """Return about how many bytes a map, or something that it holds, takes in memory."""
    size = sys.getsizeof(value)
    match value:
        case np.ndarray():
            return size if value.base is None else size + value.nbytes
        case CalibrationMap():
            return size + size_of(vars(value))
        case dict():
            return size + sum(size_of(one) for pair in value.items() for one in pair)
        case list() | tuple() | set() | frozenset():
            return size + sum(map(size_of, value))
    return size


def _resolve(
    store: Store, principal: Principal, name: str, ref: str
) -> tuple[Alias | None, Version]:
    """The version that a number or an alias means, and the alias."""
    if not NAME.fullmatch(ref):
        raise NotFound("no_such_alias", "there is no such version or alias")
    if ref.isdigit():
        if ref[0] == "0":  # one name for one version, in the cache and elsewhere
            raise NotFound(
                "no_such_version", f"{name} has no version {ref}: numbers begin with 1 to 9"
            )
        return None, versions.find(store, principal, name, int(ref))
    alias = aliases.find(store, principal, name, ref)
    return alias, versions.find(store, principal, name, alias.version)
