"""Calls for training runs: open, send statistics, read the state and the history."""

from __future__ import annotations

import base64
import secrets
from dataclasses import asdict
from typing import Any

from calibrators.adafocal import AdaFocalState, BinStatistics, Settings
from calibrd.api.base import ApiBase
from calibrd.errors import NotCalibrd
from calibrd.run_models import Run, RunSession, RunState, RunStep, Session, StepDecision
from calibrd.transport.connection import drop_none
from calibrd.transport.flows import Flow, Work, call
from calibrd.transport.names import NAME
from calibrd.transport.responses import document_of, member_of, record_of

RESPONSE_SECONDS = 15


class RunCalls(ApiBase):
    """Calls for training runs."""

    @call
    def open_run(
        self,
        name: str,
        *,
        kind: str = "adafocal",
        settings: Settings | None = None,
        world_size: int = 1,
        decides: str = "trainer",
        merge_timeout: float = 60.0,
        session: str | None = None,
        state: AdaFocalState | None = None,
        from_step: int | None = None,
        tags: dict[str, str] | None = None,
        description: str = "",
        begun: float | None = None,
    ) -> Flow[RunSession]:
        """Open or continue a training run; return a session with the state to train with.

        If neither ``state`` nor ``from_step`` is given, the run continues from the last decided
        step. All ranks of a job pass the same ``session``. ``decides`` states who merges the
        statistics and updates the state: the ``trainer`` or the ``service``, which waits at most
        ``merge_timeout`` seconds for all ranks. ``begun`` is the start time of the session in
        seconds since 1970, for sessions that are reported late; the session with the latest start
        is the current one.
        """
        body = drop_none(
            name=checked_run(name),
            kind=kind,
            settings=None if settings is None else asdict(settings),
            world_size=world_size,
            decides=decides,
            merge_timeout=merge_timeout,
            # chosen here, so that a retry sends the same id
            session=session or f"session-{secrets.token_hex(8)}",
            state=None if state is None else state.to_dict(),
            from_step=from_step,
            tags=tags,
            description=description,
            begun=begun,
        )
        response = yield from self.request("POST", "runs", body=body, repeatable=True)
        return _session_of(document_of(response))

    @call
    def send_statistics(
        self,
        run: str,
        step: int,
        statistics: BinStatistics | bytes,
        *,
        session: str | RunSession,
        rank: int = 0,
        state: AdaFocalState | None = None,
    ) -> Flow[StepDecision]:
        """Send a rank's statistics for a step; sending the same statistics again has no effect.

        ``statistics`` may be serialised already. If the trainer decides, ``state`` is the state
        that training continues with.
        """
        if isinstance(statistics, BinStatistics):
            content: bytes = yield Work(statistics.to_bytes)
        else:
            content = statistics
        body = {
            "session": session if isinstance(session, str) else session.id,
            "rank": rank,
            "statistics": base64.b64encode(content).decode(),
            "state": None if state is None else state.to_dict(),
        }
        place = ("runs", checked_run(run), "steps", step, "stats")
        return (
            yield from self.request_record(StepDecision, "POST", *place, body=body, repeatable=True)
        )

    @call
    def run_state(
        self,
        run: str,
        *,
        after: int | None = None,
        wait: float = 0.0,
        session: str | RunSession | None = None,
    ) -> Flow[RunState]:
        """Wait until a step after ``after`` is decided, and return the state to train with.

        After ``wait`` seconds (at most 60), return the latest state, whatever its step.
        """
        id = session.id if isinstance(session, RunSession) else session
        return (
            yield from self.request_record(
                RunState,
                "GET",
                "runs",
                checked_run(run),
                "state",
                query=drop_none(after=after, wait=wait or None, session=id),
                timeout=wait + min(RESPONSE_SECONDS, self.connection.timeout),
            )
        )

    @call
    def run_history(
        self,
        run: str,
        *,
        session: str | RunSession | None = None,
        after: int | None = None,
        limit: int | None = None,
    ) -> Flow[list[RunStep]]:
        """List the decided steps of a run, oldest first, except those repeated later.

        With ``session``, list all steps of that session, repeated or not.
        """
        id = session.id if isinstance(session, RunSession) else session
        place = ("runs", checked_run(run), "history")
        return (yield from self.request_all(RunStep, *place, limit=limit, session=id, after=after))

    @call
    def runs(self, *, archived: bool = False, limit: int | None = None) -> Flow[list[Run]]:
        """List training runs, most recently updated first; with ``archived``, the archived ones."""
        flag = "true" if archived else None
        return (yield from self.request_all(Run, "runs", limit=limit, archived=flag))

    @call
    def get_run(self, name: str) -> Flow[Run]:
        """Return a training run with its sessions, newest first."""
        return (yield from self.request_record(Run, "GET", "runs", checked_run(name)))

    @call
    def update_run(
        self,
        name: str,
        *,
        tags: dict[str, str] | None = None,
        description: str | None = None,
        archived: bool | None = None,
    ) -> Flow[Run]:
        """Change the tags or description of a run, or archive or unarchive it."""
        body = drop_none(tags=tags, description=description, archived=archived)
        place = ("runs", checked_run(name))
        return (yield from self.request_record(Run, "PATCH", *place, body=body, repeatable=True))


def checked_run(name: str) -> str:
    """Return the name of a run unchanged; raise ValueError if it is invalid."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(
            "a run's name must be 1 to 64 characters from a-z, 0-9, '.', '_' and '-', and begin "
            f"with a letter or digit, got {name!r}"
        )
    return name


def _session_of(document: Any) -> RunSession:
    found = member_of(document, "session")
    session = record_of(Session, found)
    facts = {name: value for name, value in found.items() if name in vars(session)}
    for name in ("created_by", "created_at"):  # the run has its own
        facts.pop(name, None)
    if not isinstance(document, dict):
        raise NotCalibrd("the response is JSON, but not a run")
    return record_of(RunSession, {**document, **facts, "run": document.get("name")})
