"""Whether the service and all its parts work."""

from __future__ import annotations

from calibrd.api.base import Asking
from calibrd.errors import NotCalibrd
from calibrd.models import Readiness
from calibrd.transport.flows import Answer, Flow, Send, call
from calibrd.transport.responses import document_of, error_of, record_of

NOT_READY = 503


class OperationCalls(Asking):
    """Calls for those who run the service."""

    @call
    def ready(self) -> Flow[Readiness]:
        """Which parts of the service work, asked once; true if all do. ServiceAway if none does."""
        step = Send("GET", "/readyz")
        answer: Answer = yield from self.connection.ask(
            step, repeatable=True, patience=0.0, also=(NOT_READY,)
        )
        try:
            return record_of(Readiness, document_of(answer))
        except NotCalibrd:
            # a proxy that finds nobody behind it answers with the same status
            raise error_of(answer) or NotCalibrd("no calibrd service answers here") from None
