"""The two clients: the same calls, once blocking and once awaited."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import httpx

from calibrd.api import Calls
from calibrd.maps.refresh import begin_anew_after_fork
from calibrd.transport.connection import PART_BYTES, Connection
from calibrd.transport.flows import (
    Answer,
    Awaiting,
    Blocking,
    Flow,
    Pause,
    R,
    Send,
    Step,
    Together,
    Work,
)
from calibrd.transport.log_redaction import keep_out_of_logs, unlogged
from calibrd.transport.response_bodies import Body

Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)


class _Reaching(Calls, Generic[Http]):
    """What both clients are made of: calls, and httpx clients to send them with."""

    _kind: ClassVar[Any]  # of httpx client

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        patience: float = 30.0,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._begin(
            Connection.make(url, api_key, timeout=timeout, patience=patience, part_bytes=part_bytes)
        )

    @classmethod
    def over(cls, connection: Connection) -> Self:
        """A client of its own that asks as another does; the environment is not looked at."""
        made = cls.__new__(cls)
        made._begin(connection)
        return made

    def _begin(self, connection: Connection) -> None:
        super().__init__(connection)
        self._tls = httpx.create_ssl_context()  # which takes longer than all the rest
        self._open()
        begin_anew_after_fork(self)

    def _open(self) -> None:
        self._lock = threading.Lock()
        self._http: Http = self._made(foreign=False)
        self._foreign: Http | None = None

    def _made(self, *, foreign: bool) -> Http:
        return cast(Http, self._kind(**self.connection.options(foreign=foreign), verify=self._tls))

    def _abroad(self) -> Http:
        """The client for servers that the service has named; few callers ever need one."""
        with self._lock:
            if self._foreign is None:
                keep_out_of_logs()
                self._foreign = self._made(foreign=True)
            return self._foreign

    def after_fork(self) -> None:
        """Take connections of its own: on those it was forked with the other process is answered.

        They are not closed, for they are still in use there.
        """
        if not self._http.is_closed:
            self._open()


class Client(_Reaching[httpx.Client], Blocking):
    """A client of the service; may be shared by threads, and closed or used as a context.

    ``url`` and ``api_key`` are by default those of CALIBRD_URL and CALIBRD_API_KEY, or the service
    that ``make serve`` runs on this machine. ``timeout`` is how long the service may be silent
    while it is listened to. What can be repeated without harm is tried again for ``patience``
    seconds while the service is away. Data of more than ``part_bytes`` are uploaded in parts of
    this size. In a forked process it goes on with connections of its own.

    >>> with Client("http://127.0.0.1:8000") as client:
    ...     client.url
    'http://127.0.0.1:8000'
    """

    _kind = httpx.Client

    def close(self) -> None:
        """Close its connections."""
        self._http.close()
        if self._foreign is not None:
            self._foreign.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, flow: Flow[R]) -> R:
        """Do the steps of a flow, one after the other."""
        return self._run(flow, threading.Event())

    def _run(self, flow: Flow[R], given_up: threading.Event) -> R:
        go, given = flow.send, None
        while True:
            try:
                step = go(given)
            except StopIteration as end:
                # not by a name: an error that this frame is part of would keep the answer alive
                return cast(R, end.value)
            try:
                go, given = flow.send, self._do(step, given_up)
            except BaseException as error:  # noqa: BLE001 - the flow knows what to do about it
                go, given = flow.throw, error

    def _do(self, step: Step, given_up: threading.Event) -> Any:
        match step:
            case Send():
                asked = self.connection.request(step)
                if step.foreign:
                    with unlogged():
                        return self._sent(self._abroad(), asked, step.most_bytes)
                return self._sent(self._http, asked, step.most_bytes)
            case Pause():
                if given_up.wait(step.seconds):
                    raise _GivenUp
                return None
            case Work():
                return step.do()
            case Together():
                return self._together(step)

    def _sent(self, http: httpx.Client, asked: dict[str, Any], most: int) -> Answer:
        with http.stream(**asked) as response:
            body = Body(response.headers, most)
            for piece in response.iter_raw():
                body.add(piece)
        return _answer(response, body)

    def _together(self, step: Together) -> list[Any]:
        given_up = threading.Event()
        pool = ThreadPoolExecutor(step.at_once, "calibrd")
        try:
            return list(pool.map(lambda make: self._run(make(), given_up), step.flows))
        except BaseException as error:
            given_up.set()  # who waits for the next try need not try again
            # Ctrl-C does not wait for answers that may never come
            pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
            raise
        finally:
            pool.shutdown(wait=False)


class _GivenUp(Exception):
    """Another of the flows that run together has failed, or Ctrl-C was pressed."""


class AsyncClient(_Reaching[httpx.AsyncClient], Awaiting):
    """The same calls as ``Client``, awaited: for one event loop."""

    _kind = httpx.AsyncClient

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()
        if self._foreign is not None:
            await self._foreign.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def run(self, flow: Flow[R]) -> R:
        """Do the steps of a flow, one after the other."""
        go, given = flow.send, None
        while True:
            try:
                step = go(given)
            except StopIteration as end:
                return cast(R, end.value)
            try:
                go, given = flow.send, await self._do(step)
            except BaseException as error:  # noqa: BLE001 - the flow knows what to do about it
                go, given = flow.throw, error

    async def _do(self, step: Step) -> Any:
        match step:
            case Send():
                asked = self.connection.request(step)
                if step.foreign:
                    with unlogged():
                        return await self._sent(self._abroad(), asked, step.most_bytes)
                return await self._sent(self._http, asked, step.most_bytes)
            case Pause():
                await asyncio.sleep(step.seconds)
                return None
            case Work():
                return await asyncio.to_thread(step.do)
            case Together():
                return await self._together(step)

    async def _sent(self, http: httpx.AsyncClient, asked: dict[str, Any], most: int) -> Answer:
        async with http.stream(**asked) as response:
            body = Body(response.headers, most)
            async for piece in response.aiter_raw():
                body.add(piece)
        return _answer(response, body)

    async def _together(self, step: Together) -> list[Any]:
        free = asyncio.Semaphore(step.at_once)

        async def one(make: Any) -> Any:
            async with free:
                return await self.run(make())

        running = [asyncio.ensure_future(one(make)) for make in step.flows]
        try:
            return await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def _answer(response: httpx.Response, body: Body) -> Answer:
    # its stream leads back to it, and would keep what was sent until garbage is collected
    response.stream = httpx.ByteStream(b"")
    return Answer(response.status_code, response.headers, body.content())
