"""Training runs: begin, send statistics, get the state back, look at the history."""

from __future__ import annotations

import base64
import secrets
from dataclasses import asdict
from typing import Any

from calibrators.adafocal import AdaFocalState, BinStatistics, Settings
from calibrd.api.base import Asking
from calibrd.errors import NotCalibrd
from calibrd.run_models import Run, RunSession, RunState, RunStep, Session, StepDecision
from calibrd.transport.connection import given
from calibrd.transport.flows import Flow, Work, call
from calibrd.transport.names import NAME
from calibrd.transport.responses import document_of, member_of, record_of

ANSWER_SECONDS = 15


class RunCalls(Asking):
    """Calls about training runs."""

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
        """Begin a training run, or go on with it: gives a session and the state to train with.

        Without ``state`` or ``from_step`` it goes on from the last decided step. All ranks of a job
        give the same ``session``. ``decides`` is who merges and updates: the ``trainer``, or the
        ``service``, which waits at most ``merge_timeout`` seconds for all ranks. ``begun`` is for a
        session that is told of late: when it began, in seconds since 1970. Of two sessions the one
        that began later is the newer.
        """
        body = given(
            name=checked_run(name),
            kind=kind,
            settings=None if settings is None else asdict(settings),
            world_size=world_size,
            decides=decides,
            merge_timeout=merge_timeout,
            # chosen here, so that it is the same if it has to be sent again
            session=session or f"session-{secrets.token_hex(8)}",
            state=None if state is None else state.to_dict(),
            from_step=from_step,
            tags=tags,
            description=description,
            begun=begun,
        )
        answer = yield from self.ask("POST", "runs", body=body, repeatable=True)
        return _session_of(document_of(answer))

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
        """Send a rank's statistics of a step; the same again makes no difference.

        ``statistics`` may be their bytes. ``state`` is what training goes on with, where the
        trainer decides.
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
        return (yield from self.ask_for(StepDecision, "POST", *place, body=body, repeatable=True))

    @call
    def run_state(
        self,
        run: str,
        *,
        after: int | None = None,
        wait: float = 0.0,
        session: str | RunSession | None = None,
    ) -> Flow[RunState]:
        """The state to train with, as soon as a step beyond ``after`` is decided.

        It is given after ``wait`` seconds (at most 60) at the latest, whichever step it is of.
        """
        id = session.id if isinstance(session, RunSession) else session
        return (
            yield from self.ask_for(
                RunState,
                "GET",
                "runs",
                checked_run(run),
                "state",
                query=given(after=after, wait=wait or None, session=id),
                timeout=wait + min(ANSWER_SECONDS, self.connection.timeout),
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
        """The decided steps of a run, oldest first; those done again are left out.

        With ``session`` all steps of that session, done again or not.
        """
        id = session.id if isinstance(session, RunSession) else session
        place = ("runs", checked_run(run), "history")
        return (yield from self.ask_for_all(RunStep, *place, limit=limit, session=id, after=after))

    @call
    def runs(self, *, archived: bool = False, limit: int | None = None) -> Flow[list[Run]]:
        """Training runs, those with news first; with ``archived`` those that are archived."""
        asked = "true" if archived else None
        return (yield from self.ask_for_all(Run, "runs", limit=limit, archived=asked))

    @call
    def get_run(self, name: str) -> Flow[Run]:
        """A training run with its sessions, newest first."""
        return (yield from self.ask_for(Run, "GET", "runs", checked_run(name)))

    @call
    def update_run(
        self,
        name: str,
        *,
        tags: dict[str, str] | None = None,
        description: str | None = None,
        archived: bool | None = None,
    ) -> Flow[Run]:
        """Change the tags or the description of a run, archive it or open it again."""
        body = given(tags=tags, description=description, archived=archived)
        place = ("runs", checked_run(name))
        return (yield from self.ask_for(Run, "PATCH", *place, body=body, repeatable=True))


def checked_run(name: str) -> str:
    """The name of a run; ValueError for all else."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(
            "a run's name is of 1 to 64 letters a-z, digits, '.', '_' and '-', and begins with a "
            f"letter or digit, got {name!r}"
        )
    return name


def _session_of(document: Any) -> RunSession:
    found = member_of(document, "session")
    session = record_of(Session, found)
    facts = {name: value for name, value in found.items() if name in vars(session)}
    for name in ("created_by", "created_at"):  # the run's are others
        facts.pop(name, None)
    if not isinstance(document, dict):
        raise NotCalibrd("the answer is JSON, but not that of a run")
    return record_of(RunSession, {**document, **facts, "run": document.get("name")})
