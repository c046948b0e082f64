"""A map of the service that is applied in this process."""

from __future__ import annotations

import logging
import math
import threading
import warnings
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from calibrators import CalibrationMap, archive
from calibrators.errors import UnknownSegments
from calibrators.numerics.parallel import Floats
from calibrators.segments import Segments
from calibrd.api.references import Reference
from calibrd.errors import InputMismatch, ServerTrouble, ServiceAway
from calibrd.io.arrays import as_array
from calibrd.io.calibration_sets import as_segments
from calibrd.maps.cache import LoadedMap
from calibrd.maps.loader import Loading, Wanted
from calibrd.maps.refresh import Follower, begin_anew_after_fork
from calibrd.transport.connection import Connection

if TYPE_CHECKING:
    from calibrd.client import Client

# the next look comes soon
PATIENCE = 2.0
# no connection is kept from one look to the next
HEADERS = {"Connection": "close"}
AWAY = "away"
# an alias that has moved to what must not be applied here
MISMATCH = ("model_mismatch", InputMismatch.code)

_log = logging.getLogger("calibrd")


class MapSource:
    """Where a local map came from, with a client of its own to ask again."""

    def __init__(self, connection: Connection, wanted: Wanted) -> None:
        self.connection = connection
        self.wanted = wanted
        self._client: Client | None = None

    def look(self, known: LoadedMap) -> LoadedMap:
        """What the reference means now."""
        here = self.connection
        if self._client is None:
            from calibrd.client import Client  # which has all calls, also the one that makes this

            self._client = Client.over(here)
        asked = {"patience": min(here.patience, PATIENCE), "headers": HEADERS}
        loading = Loading(self._client, self.wanted, asked, following=True)
        return self._client.run(loading.flow(known))


class LocalMap:
    """What ``client.load`` gives: a map that is applied in this process and follows its alias.

    It may be shared by threads and survives a fork. While the service is away, or refuses, it goes
    on with the version it has: ``problem`` says what is wrong. It does not follow to a version that
    takes another kind of input or number of classes. Pickled or copied it serves the version it has
    at that moment and follows nothing; no key goes with it.
    """

    def __init__(
        self,
        loaded: LoadedMap,
        reference: Reference,
        source: MapSource | None = None,
        refresh: float | None = None,
        trouble: Exception | None = None,
    ) -> None:
        self._now = loaded
        self._reference = reference
        self._source = source
        self._lock = threading.Lock()
        self._problem: str | None = None
        self._said: set[str] = set()
        self._follower: Follower | None = None
        if source is None:
            return
        if trouble is not None:
            self._note(trouble)
        begin_anew_after_fork(self)
        if refresh is not None and reference.number is None:
            self._follower = Follower(self, refresh)

    def apply(self, values: Any, segments: Any = None) -> Floats:
        """Calibrated probabilities (n, k) of logits, or of probabilities for maps of those.

        A map of two classes also takes one number for each row, (n,) or (n, 1); one row of more
        classes is ``[row]``. ``segments`` (n,) name the segment of each row, for a map that has
        segments; rows of one that it does not know get what all rows together have, with an
        UnknownSegments warning.
        """
        if type(values) is not np.ndarray:
            values = as_array(values)
        fitted = self._now.map
        if segments is None:
            return fitted.apply(values)
        named = Segments.of(as_segments(segments), most=None)
        found = fitted.apply(values, named)
        if note := fitted.unknown_note(named):
            warnings.warn(note, UnknownSegments, stacklevel=2)
        return found

    def transform(self, values: Any, segments: Any = None) -> Floats:
        """Calibrated logits (n, k): ``softmax(transform(x, g)) == apply(x, g)``."""
        if type(values) is not np.ndarray:
            values = as_array(values)
        return self._now.map.transform(values, None if segments is None else as_segments(segments))

    def interval(self, values: Any, level: float = 0.9) -> tuple[Floats, Floats]:
        """Return the credible band of each row's calibrated confidence: its bounds, (n,) each.

        Maps of ``additive``, which ``auto`` fits, have one; others raise a DataError.
        """
        if type(values) is not np.ndarray:
            values = as_array(values)
        return self._now.map.interval(values, level)

    @property
    def current(self) -> LoadedMap:
        """The map with its version, hash and model, all of one moment."""
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
        """What was asked for: ``name@alias`` or ``name@number``."""
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
        """When the service last said that this is the version which is meant."""
        return self._now.confirmed_at

    @property
    def problem(self) -> str | None:
        """What went wrong when the service was last asked; None if nothing."""
        return self._problem

    @property
    def is_stale(self) -> bool:
        """Whether the service did not confirm the version when it was last asked."""
        return self._problem is not None

    def refresh(self) -> bool:
        """Look now whether another version is meant; True if so.

        Raises what stands in the way; the map goes on as it was.
        """
        source = self._source
        if source is None:
            raise RuntimeError(f"{self!r} was closed, unpickled or copied: load it again")
        with self._lock:
            before = self._now
            try:
                found = source.look(before)
            except Exception as error:
                if self._source is source:
                    self._note(error)
                raise
            if self._source is not source:  # closed meanwhile
                return False
            self._now = found
            self._note(None)
        if found.number == before.number:
            return False
        _log.info("%s: version %d, was %d", self.reference, found.number, before.number)
        return True

    def _note(self, error: Exception | None) -> None:
        """Keep what is wrong, or that nothing is any more, and say it once."""
        kind = "" if error is None else _kind(error)
        if kind != AWAY and AWAY in self._said:
            self._said.remove(AWAY)
            _log.info("%s: the service is back", self.reference)
        if error is None:
            if self._said:
                _log.info("%s: version %d is confirmed again", self.reference, self.version)
            self._said.clear()
            self._problem = None
            return
        self._problem = "; ".join(str(error).splitlines()) or type(error).__name__
        if kind not in self._said:
            self._said.add(kind)
            _log.log(
                logging.ERROR if _code(error) in MISMATCH else logging.WARNING,
                "%s: going on with version %d, confirmed %s: %s",
                self.reference,
                self.version,
                self.confirmed_at.isoformat(timespec="seconds"),
                self._problem,
            )

    def close(self) -> None:
        """Follow the alias no more; the map can still be applied."""
        self._source = None
        if self._follower is not None:
            self._follower.stop()
            self._follower = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        """Begin anew in a forked process."""
        self._lock = threading.Lock()
        if self._follower is not None:
            self._follower = Follower(self, self._follower.seconds)


def map_of(given: CalibrationMap | LocalMap) -> CalibrationMap:
    """A map as it is; of a loaded one the map that it applies now."""
    if isinstance(given, LocalMap):
        return given.map
    if isinstance(given, CalibrationMap):
        return given
    pair = ": give the pair of fit_local as *fitted" if isinstance(given, tuple) else ""
    raise TypeError(f"a map must be a CalibrationMap or a LocalMap, got {type(given)!r}{pair}")


def checked_refresh(seconds: float | None) -> None:
    """Raise ValueError if it is no time between two looks."""
    if seconds is not None and not (0 < seconds < math.inf):
        raise ValueError(f"refresh must be a number of seconds above 0, or None, got {seconds!r}")


def _detached(reference: Reference, facts: dict[str, Any], content: bytes) -> LocalMap:
    """A local map as another one was when it was pickled."""
    return LocalMap(LoadedMap(**facts, map=archive.load(content)), reference)


def _kind(error: Exception) -> str:
    """Troubles of the same kind are one and the same to somebody who reads the log."""
    if isinstance(error, ServiceAway | ServerTrouble):
        return AWAY
    code = _code(error)
    return str(error) if code in MISMATCH else code


def _code(error: Exception) -> str:
    return str(getattr(error, "code", type(error).__name__))
