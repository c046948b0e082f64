"""In-memory cache of maps, keyed by ``name@alias`` or ``name@number``.

A version never changes, so its map is never stale. The aliases in use are looked up about once a
second. While the database is down, the last known versions are served.
"""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import structlog

from calibrators import CalibrationError, CalibrationMap, archive
from service.access.permissions import Principal
from service.errors import NotFound, ServiceError, TooMany
from service.names import NAME
from service.registry import service as versions
from service.registry.aliases import service as aliases
from service.storage.blob_keys import map_key
from service.storage.blobs import Blobs
from service.storage.database import Database
from service.storage.records import Alias, Version
from service.storage.store import Store

LARGE_MAP = 4 << 20
MAP_OVERHEAD = 2048  # bytes that a map takes in addition to its arrays and names
PLACE_OVERHEAD = 1024  # bytes that a cache key takes
# each is looked up about once a second, by one thread for all workspaces
ALIASES_PER_WORKSPACE = 4_000
# time limits of one workspace in a round of a refresh, and of a whole refresh
ROUND_SECONDS, REFRESH_SECONDS = 0.05, 5.0
ROOM_SECONDS = 10.0  # how long a call waits until it may load another map

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
    workspace: str = ""


class CacheKey(NamedTuple):
    """The key of a map in the cache."""

    workspace: str
    name: str
    ref: str


class Maps:
    """The maps in the memory of this process, at most ``max_bytes``.

    Beyond that limit, the workspace that uses the most memory loses its oldest map. A workspace
    that loads many maps therefore never evicts the maps of smaller ones. A version is stored once,
    no matter how many aliases point at it. A dropped map stays in memory while
    calls use it; if those of a workspace take more than half of ``max_bytes``, the workspace cannot
    load more maps until calls have ended.
    """

    def __init__(self, database: Database, blobs: Blobs, max_bytes: int) -> None:
        self._database = database
        self._blobs = blobs
        self._max_bytes = max_bytes
        self._served: dict[CacheKey, Served] = {}
        self._versions: dict[str, Served] = {}
        self._in_use: WeakValueDictionary[str, Served] = WeakValueDictionary()
        self._places: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._aliases: dict[str, dict[CacheKey, Alias]] = {}
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._large = threading.Lock()
        self._turns: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._versions)

    @property
    def bytes(self) -> int:
        """Number of bytes that the maps and their cache keys take."""
        return self._bytes.total()

    def find(self, principal: Principal, name: str, ref: str) -> Served | None:
        """Return a map, or None if it is not in memory."""
        return self._served.get(CacheKey(principal.workspace, name, ref))

    def load(self, principal: Principal, name: str, ref: str) -> Served:
        """Load a map from the database and the blobs, and keep it in memory."""
        place = CacheKey(principal.workspace, name, ref)
        with self._turn_of(principal.workspace):
            with self._database.read() as store:
                alias, version = _resolve(store, principal, name, ref)
            if _id_of(version) not in self._in_use:
                self._wait_for_room(principal.workspace)
            served = self._read(place, version)
            self._keep(place, alias, served)
        return served

    def _turn_of(self, workspace: str) -> threading.Lock:
        """Return the lock that makes a workspace load one map at a time."""
        with self._lock:
            return self._turns.setdefault(workspace, threading.Lock())

    def _wait_for_room(self, workspace: str) -> None:
        """Wait until the dropped maps of a workspace that calls still use leave room for another.

        Raises TooMany after ROOM_SECONDS.
        """
        end = time.monotonic() + ROOM_SECONDS
        while self._dropped_bytes(workspace) > self._max_bytes // 2:
            if time.monotonic() > end:
                raise TooMany(
                    "too_much_in_flight",
                    f"calls of this workspace use more maps than fit into {self._max_bytes} bytes: "
                    "send fewer requests to different versions at once",
                )
            time.sleep(0.05)

    def _dropped_bytes(self, workspace: str) -> int:
        """Return the bytes of the maps that are in use, but no longer in the cache."""
        with self._lock:
            return sum(
                one.bytes
                for one in self._in_use.values()
                if one.workspace == workspace and one.id not in self._versions
            )

    def refresh(self) -> None:
        """Find the aliases that have moved, and load the versions that they now point at.

        Workspaces take turns, and aliases are read again after each round, so that a workspace with
        many large maps does not delay others. If loading fails, the alias keeps its map, and the
        next refresh tries again.
        """
        with self._refreshing:
            tried: set[tuple[CacheKey, int]] = set()
            end = time.monotonic() + REFRESH_SECONDS
            while time.monotonic() < end and (moved := self._moved(tried)):
                for own in moved.values():
                    until = time.monotonic() + ROUND_SECONDS
                    for place, alias in own:
                        tried.add((place, alias.revision))
                        if place in self._served:
                            self._follow(place, alias)
                        if time.monotonic() > until:
                            break

    def _moved(
        self, tried: Collection[tuple[CacheKey, int]]
    ) -> dict[str, list[tuple[CacheKey, Alias]]]:
        """Return the aliases in use that have moved and are not in ``tried``, by workspace."""
        with self._lock:
            known = {place: one for own in self._aliases.values() for place, one in own.items()}
        with self._database.read() as store:
            used = sorted({(alias.calibrator, alias.name) for alias in known.values()})
            stored = {(one.calibrator, one.name): one for one in store.aliases.several(used)}
        moved: dict[str, list[tuple[CacheKey, Alias]]] = {}
        for place, alias in known.items():
            current = stored.get((alias.calibrator, alias.name))
            if current is None or current.revision == alias.revision:
                continue
            if (place, current.revision) not in tried:
                moved.setdefault(place.workspace, []).append((place, current))
        return moved

    def follow(self, principal: Principal, name: str, alias: Alias) -> None:
        """Serve the version that a just-moved alias points at, if the alias is in use."""
        place = CacheKey(principal.workspace, name, alias.name)
        known = self._aliases.get(principal.workspace, {}).get(place)
        if known is not None and known.revision < alias.revision:
            self._follow(place, alias)

    def _follow(self, place: CacheKey, alias: Alias) -> None:
        """Serve the version that a moved alias now points at."""
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
                own = self._aliases.setdefault(place.workspace, {})
                own[place] = alias
                if len(own) > ALIASES_PER_WORKSPACE:
                    self._drop(next(iter(own)))
            while len(self._served) > 1 and self.bytes > self._max_bytes:
                largest = max(self._bytes, key=self._bytes.__getitem__)
                self._drop(next(one for one in self._served if one.workspace == largest))

    def _drop(self, place: CacheKey) -> None:
        """Drop a cache key, and its version if no other key needs it."""
        own = self._aliases.get(place.workspace, {})
        if own.pop(place, None) is not None and not own:
            del self._aliases[place.workspace]
        dropped = self._served.pop(place, None)
        if dropped is None:
            return
        self._bytes[place.workspace] -= PLACE_OVERHEAD
        self._places[dropped.id] -= 1
        if not self._places[dropped.id]:
            self._bytes[place.workspace] -= self._versions[dropped.id].bytes
            del self._places[dropped.id], self._versions[dropped.id]
        if not self._bytes[place.workspace]:
            del self._bytes[place.workspace]

    def _read(self, place: CacheKey, version: Version) -> Served:
        """Return a version with its map, from memory or from a blob with a matching hash."""
        id = _id_of(version)
        known = self._in_use.get(id)
        if known is not None:
            return known
        is_large = version.map_bytes > LARGE_MAP
        # a large map takes several times its bytes while it is loaded: load one at a time
        with self._large if is_large else nullcontext():
            fitted = self._fitted(place, version)
        served = Served(
            place.name,
            version.number,
            fitted,
            version.map_sha256,
            version.model,
            id,
            MAP_OVERHEAD + size_of(fitted),
            place.workspace,
        )
        with self._lock:
            self._in_use[id] = served
        return served

    def _fitted(self, place: CacheKey, version: Version) -> CalibrationMap:
        key = map_key(place.workspace, version.id, version.map_sha256)
        content = self._blobs.get(key, version.map_sha256)
        fitted = _without_info(archive.load(content))
        compute_properties(fitted)
        return fitted


def _id_of(version: Version) -> str:
    return f"{version.calibrator}@{version.number}"


def _without_info(fitted: CalibrationMap) -> CalibrationMap:
    """Return a map without its fit information, which predictions do not need."""
    inner: dict[str, Any] = {
        name: _without_info(value)
        for name, value in vars(fitted).items()
        if isinstance(value, CalibrationMap)
    }
    return replace(fitted, fit_info={}, **inner)


def compute_properties(fitted: CalibrationMap) -> None:
    """Compute the cached properties of a map now, so that ``size_of`` counts them."""
    for name, value in inspect.getmembers_static(type(fitted)):
        if isinstance(value, cached_property):
            getattr(fitted, name)
    for value in list(vars(fitted).values()):
        if isinstance(value, CalibrationMap):
            compute_properties(value)


def size_of(value: Any) -> int:
    """Return the approximate number of bytes that a map, or one of its attributes, takes."""
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
    """Return the alias (None for a version number) and the version that a reference names."""
    if not NAME.fullmatch(ref):
        raise NotFound("no_such_alias", "there is no such version or alias")
    if ref.isdigit():
        if ref[0] == "0":  # so that each version has only one cache key
            raise NotFound(
                "no_such_version",
                f"{name} has no version {ref}: numbers start at 1, without leading zeros",
            )
        return None, versions.find(store, principal, name, int(ref))
    alias = aliases.find(store, principal, name, ref)
    return alias, versions.find(store, principal, name, alias.version)
