"""Maps that are applied in this process."""

from __future__ import annotations

from calibrd.api.base import Asking
from calibrd.api.references import Reference
from calibrd.errors import CalibrdError, MapDamaged, NotCalibrd, Refused, ServerTrouble, ServiceAway
from calibrd.maps.cache import LoadedMap, MapMemory
from calibrd.maps.loader import Loading, Wanted
from calibrd.maps.local_map import LocalMap, MapSource, checked_refresh
from calibrd.models import Version
from calibrd.transport.disk_cache import Cache
from calibrd.transport.flows import Flow, Work, call

# a map that is on disk need not wait long for a service that is away
SHORT_PATIENCE = 1.0
SHORT_TIMEOUT = 3.0


class LocalCalls(Asking):
    """Calls that bring maps here."""

    @call
    def load(
        self, ref: str | Version, *, model: str | None = None, refresh: float | None = 30.0
    ) -> Flow[LocalMap]:
        """A map that is applied in this process and follows its alias.

        Every ``refresh`` seconds it is looked whether the alias has moved (None: never). What was
        loaded is kept on disk, and used while the service is away, something else answers in its
        place, or what comes is damaged; this is logged once. With ``model``, the fingerprint of the
        model that runs here, a version fitted for another one is refused with ``model_mismatch``.
        """
        checked_refresh(refresh)
        wanted = Wanted(Reference.of(ref), model, MapMemory(Cache(self.connection)))
        known: LoadedMap | None = yield Work(wanted.recall)
        trouble: Exception | None = None
        if known is None:
            loaded = yield from Loading(self, wanted).flow(None)
        else:
            try:
                loaded = yield from Loading(self, wanted, self._short_try()).flow(known)
            except CalibrdError as error:
                if not _says_nothing_of_the_map(error):
                    raise
                wanted.check_model(known.number, known.model)
                loaded, trouble = known, error
        source = MapSource(self.connection, wanted)
        return LocalMap(loaded, wanted.reference, source, refresh, trouble)

    def _short_try(self) -> dict[str, float]:
        here = self.connection
        return {
            "timeout": min(here.timeout, SHORT_TIMEOUT),
            "patience": min(here.patience, SHORT_PATIENCE),
        }


def _says_nothing_of_the_map(error: CalibrdError) -> bool:
    """Whether the trouble is on the way, and not a word of the service on this map or this key."""
    if isinstance(error, Refused):
        told_nothing = error.code == f"status_{error.status}"  # a page of somebody before it
        return isinstance(error, ServerTrouble) or told_nothing
    return isinstance(error, ServiceAway | NotCalibrd | MapDamaged)
