"""Load the map that a reference points at, downloading only what is not cached."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from calibrators import CalibrationMap, archive
from calibrd.api.references import Reference
from calibrd.errors import Conflict, InputMismatch, MapDamaged
from calibrd.maps.cache import LoadedMap, MapCache
from calibrd.models import Version
from calibrd.transport.flows import Flow, Response, Work
from calibrd.transport.response_bodies import MAX_BYTES, MAX_MAP_BYTES

if TYPE_CHECKING:
    from calibrd.api.base import ApiBase


@dataclass(frozen=True)
class MapRequest:
    """A request for the map of ``reference``, fitted for ``model`` (None: any model)."""

    reference: Reference
    model: str | None
    cache: MapCache

    def cached(self) -> LoadedMap | None:
        """Return the cached map, or None."""
        return self.cache.read(self.reference)

    def check_model(self, number: int, model: str | None) -> None:
        """Raise Conflict if the version was fitted for another model or an unknown one."""
        if self.model in (None, model):
            return
        fitted_for = "an unknown model" if model is None else repr(model)
        raise Conflict(
            "model_mismatch",
            f"{self.reference.name}@{number} was fitted for {fitted_for}, "
            f"but the model here is {self.model!r}",
            status=409,
            details={"expected": model, "got": self.model},
        )


@dataclass(frozen=True)
class MapLoader:
    """Loader of the map that a reference points at now; ``options`` apply to each request.

    With ``following``, a version that does not take the same input as the known map raises
    InputMismatch.
    """

    client: ApiBase
    target: MapRequest
    options: Mapping[str, Any] = field(default_factory=dict)
    following: bool = False

    def flow(self, known: LoadedMap | None) -> Flow[LoadedMap]:
        """Return the current map; download it only if it is not the ``known`` one."""
        number = yield from self.client.number_at(self.target.reference, **self.options)
        if known is not None and known.number == number:
            response = yield from self._map(number, {"If-None-Match": f'"{known.sha256}"'})
            if response.status == 304:
                return (yield from self._confirmed(known))
        name = self.target.reference.name
        version = yield from self.client.request_record(
            Version, "GET", "calibrators", name, "versions", number, **self.options
        )
        self.target.check_model(number, version.model)
        if known is not None and self.following:
            _check_input(known, version)
        if known is not None and known.sha256 == version.map_sha256:
            same = dataclasses.replace(known, number=number, model=version.model)
            return (yield from self._confirmed(same))
        return (yield from self._fetched(version))

    def _map(
        self, number: int, headers: Mapping[str, str], max_bytes: int = MAX_MAP_BYTES
    ) -> Flow[Response]:
        place = ("calibrators", self.target.reference.name, "versions", number, "map")
        all_headers = {**self.options.get("headers", {}), **headers}
        options = {**self.options, "headers": all_headers, "max_bytes": max_bytes}
        return self.client.request("GET", *place, **options)

    def _confirmed(self, known: LoadedMap) -> Flow[LoadedMap]:
        self.target.check_model(known.number, known.model)
        now = dataclasses.replace(known, confirmed_at=datetime.now(UTC))
        yield Work(lambda: self.target.cache.write(self.target.reference, now))
        return now

    def _fetched(self, version: Version) -> Flow[LoadedMap]:
        most = min(version.map_bytes + MAX_BYTES, MAX_MAP_BYTES)
        response = yield from self._map(version.number, {}, most)
        fitted: CalibrationMap = yield Work(lambda: _opened(response.content, version))
        now = LoadedMap(
            version.number, version.map_sha256, version.model, datetime.now(UTC), fitted
        )
        yield Work(lambda: self.target.cache.write(self.target.reference, now, response.content))
        return now


def _check_input(known: LoadedMap, version: Version) -> None:
    """Raise InputMismatch unless a version takes the same input as the map in use."""
    if (version.kind, version.classes) != (known.map.kind, known.map.k):
        raise InputMismatch(
            f"{version.reference} takes {version.kind} of {version.classes} classes, but version "
            f"{known.number}, which is in use here, takes {known.map.kind} of {known.map.k} classes"
        )


def _opened(content: bytes, version: Version) -> CalibrationMap:
    """Return the map stored in ``content``; raise MapDamaged if its hash is not the version's."""
    found = hashlib.sha256(content).hexdigest()
    if found != version.map_sha256:
        raise MapDamaged(
            f"the map of {version.reference} arrived with the sha256 {found} ({len(content)} "
            f"bytes), but should have {version.map_sha256} ({version.map_bytes} bytes)"
        )
    return archive.load(content)
