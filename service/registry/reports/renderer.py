"""Reports as HTML, SVG and PNG: drawn in another process, once per version, and kept on disk."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

import structlog

from service.concurrency.task_process import TaskProcess
from service.concurrency.thread_pools import FairExecutor
from service.errors import ServiceError, TooMany, Unavailable

Format = Literal["html", "svg", "png"]

PROCESSES = 2
KEPT_BYTES = 256 << 20
FAILURE_SECONDS = 60.0

_log = structlog.get_logger("calibrd.rendering")


class Drawing(NamedTuple):
    """What is to be drawn: a version's report, which never changes."""

    workspace: str
    version: str
    format: Format

    @property
    def file_name(self) -> str:
        """Return the name of its file, another one for another release."""
        return f"{self.version}-{metadata.version('calibrd')}.{self.format}"


class Renderer:
    """Draws reports in processes of its own, each with a time limit.

    A drawing is kept in ``folder``; the oldest files are removed beyond KEPT_BYTES. A report that
    could not be drawn is not tried again for a minute.
    """

    def __init__(self, folder: Path, *, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._executor = FairExecutor("render", PROCESSES)
        self._files = FairExecutor("drawings", 2, most_waiting=256)
        self._processes: list[TaskProcess] = []
        self._mine = threading.local()
        self._drawing: dict[Drawing, asyncio.Task[bytes]] = {}
        self._failed: dict[Drawing, float] = {}

    async def render(
        self, drawing: Drawing, load: Callable[[], dict[str, Any]], title: str
    ) -> bytes:
        """Return a drawing, from disk if it was made before; ``load`` reads the report."""
        kept = await self._files.run(drawing.workspace, self._kept, drawing)
        if kept is not None:
            return kept
        if self._failed.get(drawing, 0.0) > time.monotonic():
            raise _failed()
        task = self._drawing.get(drawing)
        if task is None:
            task = asyncio.create_task(self._draw(drawing, load, title))
            self._drawing[drawing] = task
            task.add_done_callback(lambda _: self._drawing.pop(drawing, None))
        return await asyncio.shield(task)

    def close(self) -> None:
        """End the processes."""
        self._executor.close()
        self._files.close()
        for process in self._processes:
            process.end()

    async def _draw(
        self, drawing: Drawing, load: Callable[[], dict[str, Any]], title: str
    ) -> bytes:
        report = await self._files.run(drawing.workspace, load)
        request = {"format": drawing.format, "title": title, "report": report}
        try:
            return await self._executor.run(drawing.workspace, self._drawn, drawing, request)
        except TooMany:
            raise
        except ServiceError as error:
            if error.code == "shutting_down":
                raise
            self._note_failure(drawing)
            raise _failed() from error

    def _drawn(self, drawing: Drawing, request: dict[str, Any]) -> bytes:
        """Draw in the process of this thread, and keep the result."""
        process: TaskProcess | None = getattr(self._mine, "process", None)
        if process is None:
            process = self._mine.process = TaskProcess()
            self._processes.append(process)
        content = process.run("draw", request, self._seconds)
        self._keep(drawing, content)
        return content

    def _note_failure(self, drawing: Drawing) -> None:
        now = time.monotonic()
        self._failed = {one: until for one, until in self._failed.items() if until > now}
        self._failed[drawing] = now + FAILURE_SECONDS

    def _kept(self, drawing: Drawing) -> bytes | None:
        path = self._folder / drawing.file_name
        with suppress(OSError):
            content = path.read_bytes()
            os.utime(path)  # the ones read last are removed last
            return content
        return None

    def _keep(self, drawing: Drawing, content: bytes) -> None:
        """Write a file whole or not at all; a full disk costs time later, not the answer now."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(content)
            Path(file.name).replace(self._folder / drawing.file_name)
            self._remove_oldest()
        except OSError as error:
            _log.warning("drawing_not_kept", error=type(error).__name__)

    def _remove_oldest(self) -> None:
        found = []
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):
                state = path.stat()
                found.append((state.st_mtime, state.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found, key=lambda one: one[0]):
            if total <= KEPT_BYTES:
                return
            path.unlink(missing_ok=True)
            total -= size


def _failed() -> Unavailable:
    return Unavailable(
        "report_not_drawn",
        "this report could not be drawn in the time allowed: try again in a minute, or ask for "
        "report.json",
    )
