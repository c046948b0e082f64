"""The caller of a request: its identity, its scopes and its share of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ParamSpec, TypeVar

from fastapi import Depends, Request
from fastapi.params import Depends as DependsClass
from starlette.types import Scope as AsgiScope

from service.access.permissions import Principal, Scope
from service.concurrency.thread_pools import Executors
from service.errors import Forbidden
from service.storage.write_turns import OWNER

P = ParamSpec("P")
T = TypeVar("T")


def principal_of(scope: AsgiScope) -> Principal:
    """Return the caller that the guard has authenticated."""
    principal: Principal = scope["principal"]
    return principal


def check_scope(principal: Principal, scope: Scope) -> None:
    """Raise Forbidden if the caller's key lacks the scope."""
    if not principal.may(scope):
        raise Forbidden(
            "missing_scope", f"this needs a key with the {scope!s} scope", scope=str(scope)
        )


async def parse(request: Request, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Parse a body off the event loop, on the caller's share of threads."""
    principal: Principal | None = request.scope.get("principal")
    # a caller who is signing in has no workspace yet
    owner = "public" if principal is None else principal.workspace
    pools: Executors = request.app.state.parts.executors
    return await pools.parse.run(owner, call, *args, **kwargs)


class Needs:
    """Route dependency that requires a scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def __call__(self, request: Request) -> None:
        """Raise Forbidden if the caller lacks the scope."""
        check_scope(principal_of(request.scope), self.scope)


def needs(scope: Scope) -> list[DependsClass]:
    """Return the ``dependencies`` of a route that requires a scope."""
    return [Depends(Needs(scope))]


async def _caller(request: Request) -> Principal:
    # a coroutine, because a context variable set in a worker thread does not reach the route
    principal = principal_of(request.scope)
    OWNER.set(principal.workspace)
    return principal


Caller = Annotated[Principal, Depends(_caller)]
