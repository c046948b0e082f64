"""Where the service is, with which key, and how patiently it is asked."""

from __future__ import annotations

import os
import platform
import random
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from calibrd.errors import (
    CalibrdError,
    MaybeDone,
    NotCalibrd,
    ServiceAway,
    StoreAway,
    Unavailable,
)
from calibrd.transport.flows import Answer, Flow, Pause, Send
from calibrd.transport.response_bodies import ACCEPTED, MEGABYTE
from calibrd.transport.responses import error_of, seconds_to_wait

DEFAULT_URL = "http://127.0.0.1:8000"
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0
STORE_TRIES = 3
CONNECT_SECONDS = 5.0
PART_BYTES = 1 << 23
SMALLEST_PART = 1 << 10
# the request has certainly not arrived
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
# the next try would end in the same way
HOPELESS = (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.DecodingError)


@dataclass(frozen=True)
class Connection:
    """How a client reaches the service."""

    url: str
    api_key: str | None = field(repr=False)
    timeout: float
    patience: float
    part_bytes: int = PART_BYTES

    @classmethod
    def make(
        cls,
        url: str | None,
        api_key: str | None,
        *,
        timeout: float,
        patience: float,
        part_bytes: int = PART_BYTES,
    ) -> Connection:
        """From what is given, or else from the environment."""
        found = _first(url, os.environ.get("CALIBRD_URL"), DEFAULT_URL).rstrip("/")
        _check_url(found)
        key = _first(api_key, os.environ.get("CALIBRD_API_KEY")) or None
        if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
            raise ValueError(
                "api_key must be one word of ASCII characters such as cal_..., and this one is not"
            )
        if timeout <= 0 or patience < 0:
            raise ValueError(
                f"timeout must be above 0 and patience not below, got {timeout} and {patience}"
            )
        if part_bytes < SMALLEST_PART:
            raise ValueError(f"part_bytes must be at least {SMALLEST_PART}, got {part_bytes}")
        return cls(found, key, timeout, patience, part_bytes)

    def options(self, *, foreign: bool = False) -> dict[str, Any]:
        """What an httpx client is made with; to foreign servers neither key nor name goes."""
        headers = {"Accept-Encoding": ACCEPTED}
        if not foreign:
            version = metadata.version("calibrd")
            headers["User-Agent"] = f"calibrd/{version} python/{platform.python_version()}"
            if self.api_key is not None:
                headers["Authorization"] = f"Bearer {self.api_key}"
        return {"headers": headers}

    def request(self, step: Send) -> dict[str, Any]:
        """A step as arguments of an httpx client's ``request``."""
        seconds = self.timeout if step.timeout is None else step.timeout
        return {
            "method": step.method,
            "url": step.url if step.foreign else self.url + step.url,
            "content": step.content,
            "params": dict(step.query) or None,
            "headers": dict(step.headers),
            "timeout": httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS)),
        }

    def ask(
        self,
        step: Send,
        *,
        repeatable: bool,
        look: str = "",
        patience: float | None = None,
        also: tuple[int, ...] = (),
    ) -> Flow[Answer]:
        """Send until there is an answer, or it is enough; ``also`` these statuses are answers.

        Troubles of the way and of the service's parts are waited out, with pauses that grow and are
        drawn at random, if the request is ``repeatable`` or cannot have arrived. If it may have
        arrived, and is not repeatable, ``look`` says where to see whether it was done.
        """
        limit = self.patience if patience is None else patience
        end, pause, may_have_arrived = time.monotonic() + limit, FIRST_PAUSE, False
        while True:
            least = 0.0
            try:
                answer: Answer = yield step
            except httpx.RequestError as error:
                trouble = self._trouble(step, error, repeatable, look)
                again = type(trouble) is ServiceAway
                may_have_arrived |= not isinstance(error, NOT_SENT)
            else:
                told = None if answer.status in also else error_of(answer)
                if told is None:
                    return answer
                trouble, told = told, None
                least, again = seconds_to_wait(answer), repeatable and _is_passing(trouble)
                trouble.repeated, may_have_arrived = may_have_arrived, True
                if isinstance(trouble, Unavailable) and not repeatable:
                    trouble.add_note(_maybe_done(look))
            wait = max(least, random.uniform(pause / 2, pause))  # noqa: S311 - no secret
            try:
                if not again or time.monotonic() + wait > end:
                    raise trouble
            finally:
                del trouble  # it leads to this frame, and would keep what was sent
            yield Pause(wait)
            pause = min(2 * pause, LONGEST_PAUSE)

    def put_elsewhere(self, url: str, content: bytes) -> Flow[None]:
        """Send bytes to a store that the service has named; the key does not go there."""
        host = _host_of(url)
        step = Send("PUT", url, content, foreign=True, most_bytes=MEGABYTE)
        pause, said = FIRST_PAUSE, ""
        for tries in range(STORE_TRIES):
            if tries:
                yield Pause(random.uniform(pause / 2, pause))  # noqa: S311 - no secret
                pause *= 2
            try:
                answer: Answer = yield step
                if answer.status < 300:
                    return
                said = f"it answered with status {answer.status}"
            except httpx.RequestError as error:
                said = _words(error)
        raise StoreAway(f"the store at {host} did not take a part: {said}")

    def _trouble(
        self, step: Send, error: httpx.RequestError, repeatable: bool, look: str
    ) -> CalibrdError:
        words = f"no answer from {self.url} ({step.method} {step.url}): {_words(error)}"
        found: CalibrdError
        if isinstance(error, HOPELESS) or _is_about_tls(error):
            found = NotCalibrd(words)
        elif repeatable or isinstance(error, NOT_SENT):
            found = ServiceAway(words)
        else:
            found = MaybeDone(f"{words}; {_maybe_done(look)}")
        found.__cause__ = error
        return found


def _is_passing(trouble: CalibrdError) -> bool:
    """Return whether the next try may succeed."""
    return isinstance(trouble, Unavailable) or trouble.code == "idempotency_key_in_use"


def path(*parts: object) -> str:
    """A path of the service; what is in its parts cannot lead elsewhere.

    >>> path("calibrators", "a/b", "versions", 3)
    '/v1/calibrators/a%2Fb/versions/3'
    """
    for part in parts:
        if str(part) in ("", ".", ".."):
            raise ValueError(f"a name or an id must not be {str(part)!r}")
    return "/v1/" + "/".join(quote(str(part), safe="@:") for part in parts)


def given(**values: Any) -> Mapping[str, Any]:
    """The values that are not None.

    >>> given(limit=5, cursor=None)
    {'limit': 5}
    """
    return {name: value for name, value in values.items() if value is not None}


def _first(*texts: str | None) -> str:
    """The first that says something."""
    return next((text.strip() for text in texts if text and text.strip()), "")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        named = False
    if not named or any(character.isspace() for character in url):
        raise ValueError(f"url must be like http://127.0.0.1:8000 or https://..., got {url!r}")
    if parts.query or parts.fragment or parts.username or parts.password:
        raise ValueError("url must be an address without user, query and fragment")


def _host_of(url: object) -> str:
    """Return the host of a store; NotCalibrd if the service has named none."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            httpx.URL(str(url))
            return parts.netloc
    except (ValueError, httpx.InvalidURL):
        pass
    raise NotCalibrd(f"the answer names no place to send a part to, but {str(url)[:100]!r}")


def _maybe_done(look: str) -> str:
    return f"it may or may not have been done{f': {look}' if look else ''}"


def _words(error: httpx.RequestError) -> str:
    return str(error) or type(error).__name__


def _is_about_tls(error: BaseException | None) -> bool:
    """Whether it was refused for a certificate, or no TLS is spoken there."""
    while error is not None:
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            return True
        error = error.__cause__ or error.__context__
    return False
