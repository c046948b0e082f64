"""From a reference to its map: alias, version, bytes, and only what is not here yet."""

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
from calibrd.maps.cache import LoadedMap, MapMemory
from calibrd.models import Version
from calibrd.transport.flows import Answer, Flow, Work
from calibrd.transport.response_bodies import MOST_BYTES, MOST_MAP_BYTES

if TYPE_CHECKING:
    from calibrd.api.base import Asking


@dataclass(frozen=True)
class Wanted:
    """Which map is wanted, for which model (None: for any), and where maps are remembered."""

    reference: Reference
    model: str | None
    memory: MapMemory

    def recall(self) -> LoadedMap | None:
        """The map that was here last."""
        return self.memory.recall(self.reference)

    def check_model(self, number: int, model: str | None) -> None:
        """Raise Conflict for a version that was fitted for another model, or for none."""
        if self.model in (None, model):
            return
        fitted_for = "no model that is known" if model is None else repr(model)
        raise Conflict(
            "model_mismatch",
            f"{self.reference.name}@{number} was fitted for {fitted_for}, "
            f"but the model here is {self.model!r}",
            status=409,
            details={"expected": model, "got": self.model},
        )


@dataclass(frozen=True)
class Loading:
    """One look at what a reference means now; ``asked`` goes with each of its requests.

    With ``following``, a version that takes other input than the known one is an InputMismatch.
    """

    client: Asking
    wanted: Wanted
    asked: Mapping[str, Any] = field(default_factory=dict)
    following: bool = False

    def flow(self, known: LoadedMap | None) -> Flow[LoadedMap]:
        """The map that is meant now; the one that is ``known`` is not sent again."""
        number = yield from self.client.number_at(self.wanted.reference, **self.asked)
        if known is not None and known.number == number:
            answer = yield from self._map(number, {"If-None-Match": f'"{known.sha256}"'})
            if answer.status == 304:
                return (yield from self._confirmed(known))
        name = self.wanted.reference.name
        version = yield from self.client.ask_for(
            Version, "GET", "calibrators", name, "versions", number, **self.asked
        )
        self.wanted.check_model(number, version.model)
        if known is not None and self.following:
            _check_input(known, version)
        if known is not None and known.sha256 == version.map_sha256:
            same = dataclasses.replace(known, number=number, model=version.model)
            return (yield from self._confirmed(same))
        return (yield from self._fetched(version))

    def _map(
        self, number: int, headers: Mapping[str, str], most_bytes: int = MOST_MAP_BYTES
    ) -> Flow[Answer]:
        place = ("calibrators", self.wanted.reference.name, "versions", number, "map")
        together = {**self.asked.get("headers", {}), **headers}
        asked = {**self.asked, "headers": together, "most_bytes": most_bytes}
        return self.client.ask("GET", *place, **asked)

    def _confirmed(self, known: LoadedMap) -> Flow[LoadedMap]:
        self.wanted.check_model(known.number, known.model)
        now = dataclasses.replace(known, confirmed_at=datetime.now(UTC))
        yield Work(lambda: self.wanted.memory.keep(self.wanted.reference, now))
        return now

    def _fetched(self, version: Version) -> Flow[LoadedMap]:
        most = min(version.map_bytes + MOST_BYTES, MOST_MAP_BYTES)
        answer = yield from self._map(version.number, {}, most)
        fitted: CalibrationMap = yield Work(lambda: _opened(answer.content, version))
        now = LoadedMap(
            version.number, version.map_sha256, version.model, datetime.now(UTC), fitted
        )
        yield Work(lambda: self.wanted.memory.keep(self.wanted.reference, now, answer.content))
        return now


def _check_input(known: LoadedMap, version: Version) -> None:
    """Raise InputMismatch for a version that takes other input than the map in use."""
    if (version.kind, version.classes) != (known.map.kind, known.map.k):
        raise InputMismatch(
            f"{version.reference} takes {version.kind} of {version.classes} classes, but version "
            f"{known.number}, which is applied here, takes {known.map.kind} of {known.map.k}"
        )


def _opened(content: bytes, version: Version) -> CalibrationMap:
    """The map in bytes that have the hash which the version says."""
    found = hashlib.sha256(content).hexdigest()
    if found != version.map_sha256:
        raise MapDamaged(
            f"the map of {version.reference} arrived with the sha256 {found} ({len(content)} "
            f"bytes), but the version says {version.map_sha256} ({version.map_bytes} bytes)"
        )
    return archive.load(content)
