"""Readiness of the service and its dependencies."""

from __future__ import annotations

from calibrd.api.base import ApiBase
from calibrd.errors import NotCalibrd
from calibrd.models import Readiness
from calibrd.transport.flows import Flow, Response, Send, call
from calibrd.transport.responses import document_of, error_of, record_of

NOT_READY = 503


class OperationCalls(ApiBase):
    """Calls for operators of the service."""

    @call
    def ready(self) -> Flow[Readiness]:
        """Return the readiness of each component, without retries; truthy if all are ready.

        Raise ServiceAway if there is no response.
        """
        step = Send("GET", "/readyz")
        response: Response = yield from self.connection.send(
            step, repeatable=True, retry_seconds=0.0, also=(NOT_READY,)
        )
        try:
            return record_of(Readiness, document_of(response))
        except NotCalibrd:
            # a proxy without a backend responds with the same status
            raise error_of(response) or NotCalibrd(
                "no calibrd service responds at this URL"
            ) from None
