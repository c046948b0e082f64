"""Helpers for tests of maps applied in process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx

import calibrd
from calibrators.methods.temperature import TemperatureMap
from helpers.live_service import Running, running, sample

LOGITS, _ = sample(rows=20)


def fitted(temperature: float) -> TemperatureMap:
    """Return a map that can be recognised by its temperature."""
    return TemperatureMap(k=LOGITS.shape[1], temperature=temperature)


def release(
    client: calibrd.Client, name: str, temperature: float, model: str | None = None
) -> calibrd.Version:
    """Register a map and point production at it."""
    version = client.register(name, fitted(temperature), model=model)
    client.promote(name, version, force=True, reason="a test")
    return version


def answers(client: calibrd.Client) -> list[httpx.Response]:
    """Return a list that records the service's responses to this client."""
    seen: list[httpx.Response] = []
    client._http.event_hooks = {"response": [seen.append]}
    return seen


class Site:
    """A service that can be killed and restarted with the same data on the same port."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._open = contextlib.ExitStack()
        self._running: Running | None = None

    def start(self) -> None:
        """Start the service unless it is running."""
        if self._running is None:
            flags = ("--port", str(self.port), "--workers", "0")
            self._running = self._open.enter_context(running(self.data_dir, *flags))

    def kill(self) -> None:
        """Kill the service like a machine failure."""
        if self._running is not None:
            os.kill(self._running.process.pid, signal.SIGKILL)
            self._running.process.wait()
            self._running = None

    @contextlib.contextmanager
    def closing(self) -> Iterator[Site]:
        """Stop the service at the end of the block."""
        with self._open:
            yield self
