"""Apply a map loaded from the service in this process."""

from __future__ import annotations

import logging
import math
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from calibrators import CalibrationMap, archive
from calibrators.errors import UnknownSegments, warn_user
from calibrators.numerics.parallel import Floats
from calibrators.segments import Segments
from calibrd.api.references import Reference
from calibrd.errors import InputMismatch, ServerError, ServiceAway
from calibrd.io.arrays import as_array
from calibrd.io.calibration_sets import as_segments
from calibrd.maps.cache import LoadedMap
from calibrd.maps.loader import MapLoader, MapRequest
from calibrd.maps.refresh import Refresher, reset_after_fork
from calibrd.transport.connection import Connection

if TYPE_CHECKING:
    from calibrd.client import Client

# short, because the next poll comes soon
RETRY_SECONDS = 2.0
# no connection is kept open between polls
HEADERS = {"Connection": "close"}
AWAY = "away"
# the alias has moved to a version that must not be applied here
MISMATCH = ("model_mismatch", InputMismatch.code)

_log = logging.getLogger("calibrd")


class MapSource:
    """The source of a local map; it polls the service with a client of its own."""

    def __init__(self, connection: Connection, request: MapRequest) -> None:
        self.connection = connection
        self.request = request
        self._client: Client | None = None

    def poll(self, known: LoadedMap) -> LoadedMap:
        """Return the map that the reference points at now."""
        connection = self.connection
        if self._client is None:
            from calibrd.client import Client  # here to avoid a circular import

            self._client = Client.from_connection(connection)
        options = {
            "retry_seconds": min(connection.retry_seconds, RETRY_SECONDS),
            "headers": HEADERS,
        }
        loader = MapLoader(self._client, self.request, options, following=True)
        return self._client.run(loader.flow(known))


class LocalMap:
    """A map loaded by ``client.load``, applied in this process; it follows its alias.

    Threads can share it, and it works after a fork. While the service is unavailable or rejects
    requests, the current version stays in use, and ``problem`` gives the reason. The same holds if
    the alias moves to a version with a different kind of input or number of classes. A pickle or a
    copy keeps the current version, does not follow the alias and does not contain the API key.
    """

    def __init__(
        self,
        loaded: LoadedMap,
        reference: Reference,
        source: MapSource | None = None,
        refresh: float | None = None,
        problem: Exception | None = None,
    ) -> None:
        self._now = loaded
        self._reference = reference
        self._source = source
        self._lock = threading.Lock()
        self._problem: str | None = None
        self._logged: set[str] = set()
        self._refresher: Refresher | None = None
        if source is None:
            return
        if problem is not None:
            self._note(problem)
        reset_after_fork(self)
        if refresh is not None and reference.number is None:
            self._refresher = Refresher(self, refresh)

    def apply(self, values: Any, segments: Any = None, features: Any = None) -> Floats:
        """Return calibrated probabilities (n, k) for ``values`` of the kind the map was fitted on.

        A two-class map also takes one number per row, (n,) or (n, 1); with more classes, pass
        a single row as ``[row]``. ``segments`` (n,) holds the segment of each row, for a map that
        has segments; rows of unknown segments use the map fitted on all rows and cause an
        UnknownSegments warning. ``features`` (n, d) holds the features of each row, for a map that
        needs them.
        """
        if type(values) is not np.ndarray:
            values = as_array(values)
        fitted = self._now.map
        vectors = None if features is None else as_array(features, "features")
        if segments is None:
            return fitted.apply(values, None, vectors)
        named = Segments.of(as_segments(segments), most=None)
        found = fitted.apply(values, named, vectors)
        if note := fitted.unknown_note(named):
            warn_user(note, UnknownSegments)
        return found

    def transform(self, values: Any, segments: Any = None, features: Any = None) -> Floats:
        """Return calibrated logits (n, k), such that ``softmax(transform(x)) == apply(x)``."""
        if type(values) is not np.ndarray:
            values = as_array(values)
        names = None if segments is None else as_segments(segments)
        vectors = None if features is None else as_array(features, "features")
        return self._now.map.transform(values, names, vectors)

    def interval(self, values: Any, level: float = 0.9) -> tuple[Floats, Floats]:
        """Return the lower and upper bounds (n,) of a credible band around each row's confidence.

        Only ``additive`` maps, which ``auto`` fits by default, have a band; other maps raise
        DataError.
        """
        if type(values) is not np.ndarray:
            values = as_array(values)
        return self._now.map.interval(values, level)

    @property
    def current(self) -> LoadedMap:
        """A consistent snapshot of the map with its version, hash and model."""
        return self._now

    @property
    def map(self) -> CalibrationMap:
        """The map that is applied now."""
        return self._now.map

    @property
    def version(self) -> int:
        """The number of the version that is applied now."""
        return self._now.number

    @property
    def reference(self) -> str:
        """The reference by which the map was loaded: ``name@alias`` or ``name@number``."""
        return str(self._reference)

    @property
    def sha256(self) -> str:
        """The hash of the map's bytes."""
        return self._now.sha256

    @property
    def model(self) -> str | None:
        """The fingerprint of the model that the version was fitted for."""
        return self._now.model

    @property
    def confirmed_at(self) -> datetime:
        """The time when the service last confirmed that the reference points at this version."""
        return self._now.confirmed_at

    @property
    def problem(self) -> str | None:
        """The error from the last poll of the service; None if the poll succeeded."""
        return self._problem

    @property
    def is_stale(self) -> bool:
        """True if the last poll failed to confirm the version."""
        return self._problem is not None

    def refresh(self) -> bool:
        """Poll the service now; return whether the version has changed.

        If the poll fails, raise the error and keep the map.
        """
        source = self._source
        if source is None:
            raise RuntimeError(f"{self!r} was closed, unpickled or copied: load it again")
        with self._lock:
            before = self._now
            try:
                found = source.poll(before)
            except Exception as error:
                if self._source is source:
                    self._note(error)
                raise
            if self._source is not source:  # closed in the meantime
                return False
            self._now = found
            self._note(None)
        if found.number == before.number:
            return False
        _log.info("%s: now version %d, was %d", self.reference, found.number, before.number)
        return True

    def _note(self, error: Exception | None) -> None:
        """Store the current problem, if any, and log each change once."""
        kind = "" if error is None else _kind(error)
        if kind != AWAY and AWAY in self._logged:
            self._logged.remove(AWAY)
            _log.info("%s: the service is back", self.reference)
        if error is None:
            if self._logged:
                _log.info("%s: version %d is confirmed again", self.reference, self.version)
            self._logged.clear()
            self._problem = None
            return
        self._problem = "; ".join(str(error).splitlines()) or type(error).__name__
        if kind not in self._logged:
            self._logged.add(kind)
            _log.log(
                logging.ERROR if _code(error) in MISMATCH else logging.WARNING,
                "%s: keeping version %d, confirmed %s: %s",
                self.reference,
                self.version,
                self.confirmed_at.isoformat(timespec="seconds"),
                self._problem,
            )

    def close(self) -> None:
        """Stop following the alias; the map can still be applied."""
        self._source = None
        if self._refresher is not None:
            self._refresher.stop()
            self._refresher = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        now = self._now
        age = (datetime.now(UTC) - now.confirmed_at).total_seconds()
        model = "" if now.model is None else f", model {now.model!r}"
        problem = "" if self._problem is None else f", PROBLEM: {self._problem}"
        return (
            f"<LocalMap {self.reference}: version {now.number}, {now.map.method}, "
            f"{now.map.k} classes{model}, confirmed {max(0.0, age):.0f} s ago{problem}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        now = self._now
        return _detached, (self._reference, now.facts, archive.dump(now.map))

    def after_fork(self) -> None:
        """Replace the lock and the thread in a forked process."""
        self._lock = threading.Lock()
        if self._refresher is not None:
            self._refresher = Refresher(self, self._refresher.seconds)


def map_of(fitted: CalibrationMap | LocalMap) -> CalibrationMap:
    """Return a CalibrationMap unchanged; for a LocalMap, return the map that it applies now."""
    if isinstance(fitted, LocalMap):
        return fitted.map
    if isinstance(fitted, CalibrationMap):
        return fitted
    pair = ": unpack the result of fit_local as *fitted" if isinstance(fitted, tuple) else ""
    raise TypeError(f"a map must be a CalibrationMap or a LocalMap, got {type(fitted)!r}{pair}")


def checked_refresh(seconds: float | None) -> None:
    """Raise ValueError unless ``seconds`` is a polling interval or None."""
    if seconds is not None and not (0 < seconds < math.inf):
        raise ValueError(f"refresh must be a number of seconds above 0, or None, got {seconds!r}")


def _detached(reference: Reference, facts: dict[str, Any], content: bytes) -> LocalMap:
    """Rebuild a pickled local map."""
    return LocalMap(LoadedMap(**facts, map=archive.load(content)), reference)


def _kind(error: Exception) -> str:
    """Return a key for an error; errors with the same key are logged only once."""
    if isinstance(error, ServiceAway | ServerError):
        return AWAY
    code = _code(error)
    return str(error) if code in MISMATCH else code


def _code(error: Exception) -> str:
    return str(getattr(error, "code", type(error).__name__))
