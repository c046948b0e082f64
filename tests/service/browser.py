"""A real Chromium, spoken to through its debugging port on loopback."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
START_SECONDS = 30


class Tab:
    """One page; ``problems`` is what its console complained of, and ``asked`` what it fetched."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self.problems: list[str] = []
        self.asked: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": given}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return dict(message["result"])
            self._note(message)

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Go to a page with a window of this size."""
        self._resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 40) -> Any:
        """Its first true value; fails if there is none in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := self.run(expression):
                return found
            time.sleep(0.1)
        raise AssertionError(f"not in time: {expression}; {self.problems}")

    def whole_picture(self, file: Path, width: int) -> None:
        """The whole page as PNG, as high as it is."""
        time.sleep(0.3)
        height = self.run("document.documentElement.scrollHeight")
        self._resize(width, height)
        shot = self.call("Page.captureScreenshot")
        file.write_bytes(base64.b64decode(shot["data"]))

    def _resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def _note(self, message: dict[str, Any]) -> None:
        said = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(said["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled" if said["type"] in ("error", "warning"):
                self.problems.append(json.dumps(said["args"])[:500])
            case "Log.entryAdded" if said["entry"]["level"] in ("error", "warning"):
                self.problems.append(said["entry"]["text"])
            case "Network.requestWillBeSent":
                self.asked.append(said["request"]["url"])


def program() -> str:
    """The browser of this machine; without one, tests that need it are skipped, but not in CI."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        missing = "no browser is installed; on Debian: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


def keep_picture(tab: Tab, name: str, width: int) -> None:
    """For those who want to look: a picture in the folder that CALIBRD_PICTURES names."""
    if folder := os.environ.get("CALIBRD_PICTURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        tab.whole_picture(Path(folder) / f"{name}.png", width)


@contextlib.contextmanager
def browser(program: str) -> Iterator[Tab]:
    """A browser with an empty profile until the end of the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with connect(_address(Path(profile)), max_size=None) as socket:
                yield Tab(socket)
        finally:
            process.terminate()
            process.wait(20)


def _address(profile: Path) -> str:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError, IndexError, StopIteration):
            port = int((profile / "DevToolsActivePort").read_text().splitlines()[0])
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
                pages = json.load(answer)
            return str(next(one for one in pages if one["type"] == "page")["webSocketDebuggerUrl"])
        time.sleep(0.1)
    raise AssertionError("the browser did not start")
