"""Load maps, to apply them in this process."""

from __future__ import annotations

from calibrd.api.base import ApiBase
from calibrd.api.references import Reference
from calibrd.errors import CalibrdError, MapDamaged, NotCalibrd, Refused, ServerError, ServiceAway
from calibrd.maps.cache import LoadedMap, MapCache
from calibrd.maps.loader import MapLoader, MapRequest
from calibrd.maps.local_map import LocalMap, MapSource, checked_refresh
from calibrd.models import Version
from calibrd.transport.disk_cache import Cache
from calibrd.transport.flows import Flow, Work, call

# if a map is cached, there is no need to wait long for a service that is unavailable
SHORT_RETRY_SECONDS = 1.0
SHORT_TIMEOUT = 3.0


class LocalCalls(ApiBase):
    """Calls that load maps into this process."""

    @call
    def load(
        self, ref: str | Version, *, model: str | None = None, refresh: float | None = 30.0
    ) -> Flow[LocalMap]:
        """Load a map to apply in this process; the map follows its alias.

        The alias is polled every ``refresh`` seconds (None: never). Loaded maps are cached on disk.
        If the service is unavailable, another server responds at its URL, or the download is
        damaged, the cached map is used and the problem is logged once. ``model`` is the fingerprint
        of the local model: a version fitted for another model is rejected with ``model_mismatch``.
        """
        checked_refresh(refresh)
        request = MapRequest(Reference.of(ref), model, MapCache(Cache(self.connection)))
        cached: LoadedMap | None = yield Work(request.cached)
        problem: Exception | None = None
        if cached is None:
            loaded = yield from MapLoader(self, request).flow(None)
        else:
            try:
                loaded = yield from MapLoader(self, request, self._short_limits()).flow(cached)
            except CalibrdError as error:
                if not _is_outage(error):
                    raise
                request.check_model(cached.number, cached.model)
                loaded, problem = cached, error
        source = MapSource(self.connection, request)
        return LocalMap(loaded, request.reference, source, refresh, problem)

    def _short_limits(self) -> dict[str, float]:
        connection = self.connection
        return {
            "timeout": min(connection.timeout, SHORT_TIMEOUT),
            "retry_seconds": min(connection.retry_seconds, SHORT_RETRY_SECONDS),
        }


def _is_outage(error: CalibrdError) -> bool:
    """Return whether an error indicates an outage rather than a problem with this map or key."""
    if isinstance(error, Refused):
        is_from_proxy = error.code == f"status_{error.status}"  # not the service's own code
        return isinstance(error, ServerError) or is_from_proxy
    return isinstance(error, ServiceAway | NotCalibrd | MapDamaged)
