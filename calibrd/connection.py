"""Where the service is, with which key, and how patiently it is asked."""

from __future__ import annotations

import os
import platform
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from calibrd.answers import error_of
from calibrd.errors import CalibrdError, ServiceAway, StoreAway, Unavailable
from calibrd.flows import Answer, Flow, Pause, Send

DEFAULT_URL = "http://127.0.0.1:8000"
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0
STORE_TRIES = 3
CONNECT_SECONDS = 5.0
# the request has certainly not arrived
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True)
class Connection:
    """How a client reaches the service."""

    url: str
    api_key: str | None = field(repr=False)
    timeout: float
    patience: float

    @classmethod
    def make(
        cls, url: str | None, api_key: str | None, *, timeout: float, patience: float
    ) -> Connection:
        """From what is given, or else from the environment."""
        found = (url or os.environ.get("CALIBRD_URL") or DEFAULT_URL).strip().rstrip("/")
        parts = urlsplit(found)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must begin with http:// or https://, got {found!r}")
        if parts.query or parts.fragment or parts.username:
            raise ValueError("url must be an address without user, query and fragment")
        if timeout <= 0 or patience < 0:
            raise ValueError(
                f"timeout must be above 0 and patience not below, got {timeout} and {patience}"
            )
        key = (api_key or os.environ.get("CALIBRD_API_KEY") or "").strip() or None
        return cls(found, key, timeout, patience)

    def options(self, *, foreign: bool = False) -> dict[str, Any]:
        """What an httpx client is made with; to foreign servers neither key nor name goes."""
        headers = {}
        if not foreign:
            version = metadata.version("calibrd")
            headers["User-Agent"] = f"calibrd/{version} python/{platform.python_version()}"
            if self.api_key is not None:
                headers["Authorization"] = f"Bearer {self.api_key}"
        timeout = httpx.Timeout(self.timeout, connect=min(self.timeout, CONNECT_SECONDS))
        return {"headers": headers, "timeout": timeout}

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

    def ask(self, step: Send, *, repeatable: bool, patience: float | None = None) -> Flow[Answer]:
        """Send until there is an answer, or it is enough.

        Troubles of the way and of the service's parts are waited out, with pauses that grow and are
        drawn at random, if the request is ``repeatable`` or cannot have arrived.
        """
        limit = self.patience if patience is None else patience
        end, pause = time.monotonic() + limit, FIRST_PAUSE
        while True:
            least = 0.0
            try:
                answer: Answer = yield step
                trouble: CalibrdError | None = error_of(answer)
                if trouble is None:
                    return answer
                if not (isinstance(trouble, Unavailable) and repeatable):
                    raise trouble
                least = _retry_after(answer)
            except httpx.TransportError as error:
                trouble = self._away(step, error)
                trouble.__cause__ = error
                if not (repeatable or isinstance(error, NOT_SENT)):
                    raise trouble from error
            wait = max(least, random.uniform(pause / 2, pause))  # noqa: S311 - no secret
            if time.monotonic() + wait > end:
                raise trouble
            yield Pause(wait)
            pause = min(2 * pause, LONGEST_PAUSE)

    def put_elsewhere(self, url: str, content: bytes) -> Flow[None]:
        """Send bytes to a store that the service has named; the key does not go there."""
        step, pause, said = Send("PUT", url, content, foreign=True), FIRST_PAUSE, ""
        for _ in range(STORE_TRIES):
            try:
                answer: Answer = yield step
                if answer.status < 300:
                    return
                said = f"it answered with status {answer.status}"
            except httpx.TransportError as error:
                said = _words(error)
            yield Pause(pause)
            pause *= 2
        host = urlsplit(url).netloc
        raise StoreAway(f"the store at {host} did not take a part: {said}")

    def _away(self, step: Send, error: httpx.TransportError) -> CalibrdError:
        return ServiceAway(f"no answer from {self.url} ({step.method} {step.url}): {_words(error)}")


def path(*parts: object) -> str:
    """A path of the service; what is in its parts cannot lead elsewhere.

    >>> path("calibrators", "a/b", "versions", 3)
    '/v1/calibrators/a%2Fb/versions/3'
    """
    return "/v1/" + "/".join(quote(str(part), safe="@:") for part in parts)


def given(**values: Any) -> Mapping[str, Any]:
    """The values that are not None.

    >>> given(limit=5, cursor=None)
    {'limit': 5}
    """
    return {name: value for name, value in values.items() if value is not None}


def _words(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__


def _retry_after(answer: Answer) -> float:
    try:
        return min(float(answer.headers.get("retry-after", "0")), LONGEST_PAUSE)
    except ValueError:
        return 0.0
