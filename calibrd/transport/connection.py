"""The connection to the service: URL, key, timeouts and retries."""

from __future__ import annotations

import os
import platform
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from calibrators.backoff import Backoff
from calibrd.errors import (
    CalibrdError,
    MaybeDone,
    NotCalibrd,
    ServiceAway,
    StoreAway,
    Unavailable,
)
from calibrd.transport.flows import Flow, Pause, Response, Send
from calibrd.transport.response_bodies import ACCEPTED, MEGABYTE
from calibrd.transport.responses import error_of, seconds_to_wait

DEFAULT_URL = "http://127.0.0.1:8000"
STORE_TRIES = 3
CONNECT_SECONDS = 5.0
PART_BYTES = 1 << 23
SMALLEST_PART = 1 << 10
# errors that prove that the request was not sent
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
# errors that a retry cannot fix
HOPELESS = (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.DecodingError)


@dataclass(frozen=True)
class Connection:
    """Settings of a client's connection; ``clock`` returns the time in seconds, for retries."""

    url: str
    api_key: str | None = field(repr=False)
    timeout: float
    retry_seconds: float
    part_bytes: int = PART_BYTES
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)

    @classmethod
    def make(
        cls,
        url: str | None,
        api_key: str | None,
        *,
        timeout: float,
        retry_seconds: float,
        part_bytes: int = PART_BYTES,
    ) -> Connection:
        """Create a connection; settings that are None are read from the environment."""
        found = _first(url, os.environ.get("CALIBRD_URL"), DEFAULT_URL).rstrip("/")
        _check_url(found)
        key = _first(api_key, os.environ.get("CALIBRD_API_KEY")) or None
        if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
            raise ValueError("api_key must be printable ASCII without spaces, such as cal_...")
        if timeout <= 0 or retry_seconds < 0:
            raise ValueError(
                "timeout must be above 0 and retry_seconds at least 0, "
                f"got {timeout} and {retry_seconds}"
            )
        if part_bytes < SMALLEST_PART:
            raise ValueError(f"part_bytes must be at least {SMALLEST_PART}, got {part_bytes}")
        return cls(found, key, timeout, retry_seconds, part_bytes)

    def options(self, *, foreign: bool = False) -> dict[str, Any]:
        """Return the arguments of an httpx client.

        A client for other servers (``foreign``) sends no key or user agent.
        """
        headers = {"Accept-Encoding": ACCEPTED}
        if not foreign:
            version = metadata.version("calibrd")
            headers["User-Agent"] = f"calibrd/{version} python/{platform.python_version()}"
            if self.api_key is not None:
                headers["Authorization"] = f"Bearer {self.api_key}"
        return {"headers": headers}

    def request_arguments(self, step: Send) -> dict[str, Any]:
        """Return the keyword arguments of ``httpx.Client.stream`` for a step."""
        seconds = self.timeout if step.timeout is None else step.timeout
        return {
            "method": step.method,
            "url": step.url if step.foreign else self.url + step.url,
            "content": step.content,
            "params": dict(step.query) or None,
            "headers": dict(step.headers),
            "timeout": httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS)),
        }

    def send(
        self,
        step: Send,
        *,
        repeatable: bool,
        check_hint: str = "",
        retry_seconds: float | None = None,
        also: tuple[int, ...] = (),
    ) -> Flow[Response]:
        """Send a request with retries; return the response, or raise its error.

        Network failures and temporary failures of the service are retried for ``retry_seconds``
        with growing random pauses if the request is ``repeatable`` or cannot have arrived. If a
        request that is not repeatable may have arrived, ``check_hint`` explains how to find out
        whether it succeeded. Responses with a status in ``also`` are returned instead of raised.
        """
        limit = self.retry_seconds if retry_seconds is None else retry_seconds
        end, backoff, may_have_arrived = self.clock() + limit, Backoff(), False
        while True:
            least = 0.0
            try:
                response: Response = yield step
            except httpx.RequestError as error:
                failure = self._failure(step, error, repeatable, check_hint)
                is_retried = type(failure) is ServiceAway
                may_have_arrived |= not isinstance(error, NOT_SENT)
            else:
                refusal = None if response.status in also else error_of(response)
                if refusal is None:
                    return response
                failure, refusal = refusal, None
                least, is_retried = seconds_to_wait(response), repeatable and _is_passing(failure)
                failure.repeated, may_have_arrived = may_have_arrived, True
                if isinstance(failure, Unavailable) and not repeatable:
                    failure.add_note(_maybe_done(check_hint))
            wait = max(least, backoff.pause())
            try:
                if not is_retried or self.clock() + wait > end:
                    raise failure
            finally:
                del failure  # refers to this frame, so it would keep the request alive
            yield Pause(wait)

    def put_foreign(self, url: str, content: bytes) -> Flow[None]:
        """Send bytes to an object store named by the service, without the API key."""
        host = _host_of(url)
        step = Send("PUT", url, content, foreign=True, max_bytes=MEGABYTE)
        backoff, reason = Backoff(), ""
        for tries in range(STORE_TRIES):
            if tries:
                yield Pause(backoff.pause())
            try:
                response: Response = yield step
                if response.status < 300:
                    return
                reason = f"it responded with status {response.status}"
            except httpx.RequestError as error:
                reason = _message(error)
        raise StoreAway(f"the object store at {host} did not accept a part: {reason}")

    def _failure(
        self, step: Send, error: httpx.RequestError, repeatable: bool, check_hint: str
    ) -> CalibrdError:
        message = f"no response from {self.url} ({step.method} {step.url}): {_message(error)}"
        found: CalibrdError
        if isinstance(error, HOPELESS) or _is_about_tls(error):
            found = NotCalibrd(message)
        elif repeatable or isinstance(error, NOT_SENT):
            found = ServiceAway(message)
        else:
            found = MaybeDone(f"{message}; {_maybe_done(check_hint)}")
        found.__cause__ = error
        return found


def _is_passing(error: CalibrdError) -> bool:
    """Return whether an error is temporary, so that a retry may succeed."""
    return isinstance(error, Unavailable) or error.code == "idempotency_key_in_use"


def path(*parts: object) -> str:
    """Join parts into a service path; escaping ensures that they cannot change the route.

    >>> path("calibrators", "a/b", "versions", 3)
    '/v1/calibrators/a%2Fb/versions/3'
    """
    for part in parts:
        if str(part) in ("", ".", ".."):
            raise ValueError(f"a name or an id must not be {str(part)!r}")
    return "/v1/" + "/".join(quote(str(part), safe="@:") for part in parts)


def drop_none(**values: Any) -> Mapping[str, Any]:
    """Return the values that are not None.

    >>> drop_none(limit=5, cursor=None)
    {'limit': 5}
    """
    return {name: value for name, value in values.items() if value is not None}


def _first(*texts: str | None) -> str:
    """Return the first string that is not blank."""
    return next((text.strip() for text in texts if text and text.strip()), "")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        named = False
    if not named or any(character.isspace() for character in url):
        raise ValueError(f"url must look like http://127.0.0.1:8000 or https://..., got {url!r}")
    if parts.query or parts.fragment or parts.username or parts.password:
        raise ValueError("url must not contain a user, a query or a fragment")


def _host_of(url: object) -> str:
    """Return the host in the URL of an object store; raise NotCalibrd if the URL is invalid."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            httpx.URL(str(url))
            return parts.netloc
    except (ValueError, httpx.InvalidURL):
        pass
    raise NotCalibrd(f"the response must give a URL to send a part to, got {str(url)[:100]!r}")


def _maybe_done(check_hint: str) -> str:
    return f"the request may or may not have succeeded{f': {check_hint}' if check_hint else ''}"


def _message(error: httpx.RequestError) -> str:
    return str(error) or type(error).__name__


def _is_about_tls(error: BaseException | None) -> bool:
    """Return whether TLS failed: a rejected certificate, or a server that does not use TLS."""
    while error is not None:
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            return True
        error = error.__cause__ or error.__context__
    return False
