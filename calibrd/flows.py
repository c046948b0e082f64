"""What a call is made of, without saying how it is sent: one description for both clients.

A call is a generator, a *flow*. It yields steps (send this request, wait so long, do these at once)
and is given what they gave; its return value is the answer of the call. ``Client`` and
``AsyncClient`` differ only in how they do a step.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Send:
    """A request; a ``foreign`` one goes to another server, without the key."""

    method: str
    url: str
    content: bytes | None = None
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    foreign: bool = False


@dataclass(frozen=True)
class Answer:
    """A response, read whole; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True)
class Pause:
    """Wait for some seconds."""

    seconds: float


@dataclass(frozen=True)
class Work:
    """Something that keeps a core or a disk busy: an event loop should not wait for it."""

    do: Callable[[], Any]


@dataclass(frozen=True)
class Together:
    """Flows to be run at once, at most so many; gives their answers in order.

    When one fails, those that have not begun are left out and its error is raised.
    """

    flows: Sequence[Callable[[], Flow[Any]]]
    at_once: int = 4


Step: TypeAlias = Send | Pause | Work | Together
Flow: TypeAlias = Generator[Step, Any, R]


class Blocking:
    """A client whose calls block."""

    def run(self, flow: Flow[R]) -> R:
        """Do the steps of a flow, one after the other."""
        raise NotImplementedError


class Awaiting:
    """A client whose calls are awaited."""

    async def run(self, flow: Flow[R]) -> R:
        """Do the steps of a flow, one after the other."""
        raise NotImplementedError


class call(Generic[P, R]):
    """Makes a flow a method of both clients: one blocks, the other is awaited."""

    def __init__(self, flow: Callable[Concatenate[Any, P], Flow[R]]) -> None:
        self.flow = flow
        self.__doc__ = flow.__doc__

    @overload
    def __get__(self, client: None, owner: Any) -> call[P, R]: ...
    @overload
    def __get__(self, client: Blocking, owner: Any) -> Callable[P, R]: ...
    @overload
    def __get__(self, client: Awaiting, owner: Any) -> Callable[P, Coroutine[Any, Any, R]]: ...
    def __get__(self, client: Any, owner: Any) -> Any:
        if client is None:
            return self

        @functools.wraps(self.flow)
        def run(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.run(self.flow(client, *args, **kwargs))

        run.__signature__ = _signature(self.flow)  # type: ignore[attr-defined]
        return run


@functools.cache
def _signature(flow: Callable[..., Any]) -> inspect.Signature:
    """The signature that a user of the method sees: without self, with the answer's type."""
    found = inspect.signature(flow)
    answer = str(found.return_annotation).removeprefix("Flow[").removesuffix("]")
    _, *rest = found.parameters.values()
    return found.replace(parameters=rest, return_annotation=answer)
