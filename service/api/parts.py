"""What routes work with: the joined parts of a running service, and the caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar

import structlog
from fastapi import Depends, Request
from fastapi.params import Depends as DependsClass
from starlette.types import Scope as AsgiScope

from service.api.metrics import Metrics
from service.api.probe import Probe
from service.core.access import Principal, Scope
from service.core.comparing import Comparisons
from service.core.datasets import Datasets
from service.core.executors import Executors
from service.core.fits import Queue
from service.core.keys import KeyRing
from service.core.memory_budget import MemoryBudget
from service.core.part_uploads import PartUploads
from service.core.rendering import Renderer
from service.core.serving import Maps
from service.core.sessions import Sessions
from service.core.watching import FitWatcher, RunWatcher
from service.errors import Forbidden
from service.settings import Settings
from service.storage.blobs import Blobs
from service.storage.database import Database
from service.storage.write_turns import OWNER

P = ParamSpec("P")
T = TypeVar("T")

_log = structlog.get_logger("calibrd.service")


@dataclass(frozen=True)
class Parts:
    """The parts of a service, joined by ``service.app``."""

    settings: Settings
    database: Database
    blobs: Blobs
    queue: Queue
    keys: KeyRing
    sessions: Sessions
    maps: Maps
    comparisons: Comparisons
    watcher: FitWatcher
    run_watcher: RunWatcher
    datasets: Datasets
    part_uploads: PartUploads
    executors: Executors
    body_budget: MemoryBudget
    renderer: Renderer
    metrics: Metrics
    probe: Probe

    def refresh(self) -> None:
        """See which keys and aliases have changed."""
        self.keys.refresh()
        self.maps.refresh()

    def refresh_if_possible(self) -> None:
        """The same; while the database is away, go on with what is known until the next look."""
        try:
            self.refresh()
        except Exception as error:  # noqa: BLE001 - what was committed is not undone by this
            _log.warning("refresh_failed", error=type(error).__name__)

    def end_waiting(self) -> None:
        """Answer all who wait for something, because the service ends."""
        self.watcher.stop()
        self.run_watcher.stop()

    @property
    def uploads(self) -> Path:
        """Where bodies land while they arrive."""
        return self.settings.data_dir / "uploads"


def _parts(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


def principal_of(scope: AsgiScope) -> Principal:
    """The caller that the guard has let in."""
    principal: Principal = scope["principal"]
    return principal


def check_scope(principal: Principal, scope: Scope) -> None:
    """Raise if the caller's key lacks the scope."""
    if not principal.may(scope):
        raise Forbidden(
            "missing_scope", f"this needs a key with the scope {scope!s}", scope=str(scope)
        )


async def parse(request: Request, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run what reads a body off the event loop, on the caller's share of threads."""
    principal: Principal | None = request.scope.get("principal")
    # whoever signs in has no workspace yet
    owner = "public" if principal is None else principal.workspace
    return await _parts(request).executors.parse.run(owner, call, *args, **kwargs)


class Needs:
    """A route's dependency: the scope that its caller needs."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def __call__(self, request: Request) -> None:
        """Raise if the caller lacks it."""
        check_scope(principal_of(request.scope), self.scope)


def needs(scope: Scope) -> list[DependsClass]:
    """For a route's ``dependencies``."""
    return [Depends(Needs(scope))]


async def _caller(request: Request) -> Principal:
    # a coroutine: what a plain function sets is not seen by the route
    principal = principal_of(request.scope)
    OWNER.set(principal.workspace)
    return principal


Joined = Annotated[Parts, Depends(_parts)]
Caller = Annotated[Principal, Depends(_caller)]
