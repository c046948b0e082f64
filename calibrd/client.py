"""Synchronous and asynchronous clients with the same calls."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import httpx

from calibrd.api import Calls
from calibrd.maps.refresh import reset_after_fork
from calibrd.transport.connection import PART_BYTES, Connection
from calibrd.transport.flows import (
    Awaiting,
    Blocking,
    Flow,
    Pause,
    R,
    Response,
    Send,
    Step,
    Together,
    Work,
)
from calibrd.transport.log_redaction import keep_out_of_logs, unlogged
from calibrd.transport.response_bodies import Body

Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)


class _ClientBase(Calls, Generic[Http]):
    """Base class of both clients: the calls, and the httpx clients that send them."""

    _http_class: ClassVar[Any]

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        retry_seconds: float = 30.0,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._begin(
            Connection.make(
                url, api_key, timeout=timeout, retry_seconds=retry_seconds, part_bytes=part_bytes
            )
        )

    @classmethod
    def from_connection(cls, connection: Connection) -> Self:
        """Create a client from a connection, without reading the environment."""
        made = cls.__new__(cls)
        made._begin(connection)
        return made

    def _begin(self, connection: Connection) -> None:
        super().__init__(connection)
        self._tls = httpx.create_ssl_context()  # created once, because it is slow
        self._open()
        reset_after_fork(self)

    def _open(self) -> None:
        self._lock = threading.Lock()
        self._http: Http = self._new_http(foreign=False)
        self._foreign: Http | None = None

    def _new_http(self, *, foreign: bool) -> Http:
        options = self.connection.options(foreign=foreign)
        return cast(Http, self._http_class(**options, verify=self._tls))

    def _foreign_http(self) -> Http:
        """Return the httpx client for other servers (object stores); create it on first use."""
        with self._lock:
            if self._foreign is None:
                keep_out_of_logs()
                self._foreign = self._new_http(foreign=True)
            return self._foreign

    def after_fork(self) -> None:
        """Open new connections; the parent still uses the old ones."""
        if not self._http.is_closed:
            self._open()


class Client(_ClientBase[httpx.Client], Blocking):
    """Thread-safe client of the service; close it, or use it as a context manager.

    ``url`` defaults to CALIBRD_URL, or to the service that ``make serve`` runs on this machine;
    ``api_key`` defaults to CALIBRD_API_KEY. ``timeout`` is the number of seconds that a request
    waits for the next byte. Idempotent calls are retried for ``retry_seconds`` while the service is
    unreachable. Data larger than ``part_bytes`` is uploaded in parts of that size. A forked process
    opens its own connections.

    >>> with Client("http://127.0.0.1:8000") as client:
    ...     client.url
    'http://127.0.0.1:8000'
    """

    _http_class = httpx.Client

    def close(self) -> None:
        """Close the connections."""
        self._http.close()
        if self._foreign is not None:
            self._foreign.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, flow: Flow[R]) -> R:
        """Run the steps of a flow, one after the other."""
        return self._run(flow, threading.Event())

    def _run(self, flow: Flow[R], cancelled: threading.Event) -> R:
        resume, value = flow.send, None
        while True:
            try:
                step = resume(value)
            except StopIteration as end:
                # not in a local variable: a traceback with this frame would keep the result alive
                return cast(R, end.value)
            try:
                resume, value = flow.send, self._do(step, cancelled)
            except BaseException as error:  # noqa: BLE001 - the flow handles it
                resume, value = flow.throw, error

    def _do(self, step: Step, cancelled: threading.Event) -> Any:
        match step:
            case Send():
                options = self.connection.request_arguments(step)
                if step.foreign:
                    with unlogged():
                        return self._sent(self._foreign_http(), options, step.max_bytes)
                return self._sent(self._http, options, step.max_bytes)
            case Pause():
                if cancelled.wait(step.seconds):
                    raise _Cancelled
                return None
            case Work():
                return step.do()
            case Together():
                return self._together(step)

    def _sent(self, http: httpx.Client, options: dict[str, Any], max_bytes: int) -> Response:
        with http.stream(**options) as response:
            body = Body(response.headers, max_bytes)
            for piece in response.iter_raw():
                body.add(piece)
        return _read_response(response, body)

    def _together(self, step: Together) -> list[Any]:
        cancelled = threading.Event()
        pool = ThreadPoolExecutor(step.at_once, "calibrd")
        try:
            return list(pool.map(lambda make: self._run(make(), cancelled), step.flows))
        except BaseException as error:
            cancelled.set()  # stops flows that are pausing before a retry
            # after Ctrl-C, do not wait for responses that may never arrive
            pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
            raise
        finally:
            pool.shutdown(wait=False)


class _Cancelled(Exception):
    """Signal that stops a pausing flow after another one has failed or Ctrl-C was pressed."""


class AsyncClient(_ClientBase[httpx.AsyncClient], Awaiting):
    """Asynchronous client with the calls of ``Client`` as coroutines, for use in one event loop."""

    _http_class = httpx.AsyncClient

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()
        if self._foreign is not None:
            await self._foreign.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, flow: Flow[R]) -> R:
        """Run the steps of a flow, one after the other."""
        resume, value = flow.send, None
        while True:
            try:
                step = resume(value)
            except StopIteration as end:
                return cast(R, end.value)
            try:
                resume, value = flow.send, await self._do(step)
            except BaseException as error:  # noqa: BLE001 - the flow handles it
                resume, value = flow.throw, error

    async def _do(self, step: Step) -> Any:
        match step:
            case Send():
                options = self.connection.request_arguments(step)
                if step.foreign:
                    with unlogged():
                        return await self._sent(self._foreign_http(), options, step.max_bytes)
                return await self._sent(self._http, options, step.max_bytes)
            case Pause():
                await asyncio.sleep(step.seconds)
                return None
            case Work():
                return await asyncio.to_thread(step.do)
            case Together():
                return await self._together(step)

    async def _sent(
        self, http: httpx.AsyncClient, options: dict[str, Any], max_bytes: int
    ) -> Response:
        async with http.stream(**options) as response:
            body = Body(response.headers, max_bytes)
            async for piece in response.aiter_raw():
                body.add(piece)
        return _read_response(response, body)

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


def _read_response(response: httpx.Response, body: Body) -> Response:
    # the stream and the response refer to each other, which would keep the request alive until
    # the next garbage collection
    response.stream = httpx.ByteStream(b"")
    return Response(response.status_code, response.headers, body.content())
