"""Flows: calls written once for both clients, independently of how requests are sent.

A call is a generator, a *flow*. It yields steps (send a request, pause, run flows concurrently) and
receives their results; its return value is the result of the call. ``Client`` and ``AsyncClient``
differ only in how they run a step.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

from calibrd.transport.response_bodies import MAX_BYTES

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Send:
    """A request; a ``foreign`` request goes to another server, without the API key."""

    method: str
    url: str
    content: bytes | None = None
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    foreign: bool = False
    max_bytes: int = MAX_BYTES  # of the response


@dataclass(frozen=True)
class Response:
    """A complete response; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True)
class Pause:
    """A pause of ``seconds``."""

    seconds: float


@dataclass(frozen=True)
class Work:
    """CPU or disk work that must not block an event loop."""

    do: Callable[[], Any]


@dataclass(frozen=True)
class Together:
    """Flows to run concurrently, at most ``at_once`` at a time; results are in the same order.

    If a flow fails, its error is raised, and flows that have not started are skipped.
    """

    flows: Sequence[Callable[[], Flow[Any]]]
    at_once: int = 4


Step: TypeAlias = Send | Pause | Work | Together
Flow: TypeAlias = Generator[Step, Any, R]


class Blocking(ABC):
    """A client whose calls block."""

    @abstractmethod
    def run(self, flow: Flow[R]) -> R:
        """Run the steps of a flow, one after the other."""


class Awaiting(ABC):
    """A client whose calls are awaited."""

    @abstractmethod
    async def run(self, flow: Flow[R]) -> R:
        """Run the steps of a flow, one after the other."""


class Call(Protocol[P, R]):
    """The type of a call: a method of both clients whose ``flow`` can be used by other flows."""

    @property
    def flow(self) -> Callable[Concatenate[Any, P], Flow[R]]:
        """The function that creates the flow of the call."""

    @overload
    def __get__(self, client: None, owner: Any) -> Call[P, R]: ...
    @overload
    def __get__(self, client: Blocking, owner: Any) -> Callable[P, R]: ...
    @overload
    def __get__(self, client: Awaiting, owner: Any) -> Callable[P, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(self, client: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(
        self, client: Awaiting, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...


def call(flow: Callable[Concatenate[Any, P], Flow[R]]) -> Call[P, R]:
    """Turn a flow into a method of ``Client`` and a coroutine method of ``AsyncClient``.

    The method is a plain function, so inspect, help and mock support it. The client's ``run``
    determines what it returns.
    """

    @functools.wraps(flow)
    def run(self: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.run(flow(self, *args, **kwargs))

    made: Any = run
    made.flow = flow
    made.__signature__ = _signature(flow)
    return cast(Call[P, R], made)


def _signature(flow: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of the method, annotated with the result instead of the flow."""
    found = inspect.signature(flow)
    result = str(found.return_annotation).removeprefix("Flow[").removesuffix("]")
    return found.replace(return_annotation=result)
