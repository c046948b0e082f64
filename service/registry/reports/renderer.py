"""Render reports as HTML, SVG and PNG in separate processes, and cache them on disk."""

from __future__ import annotations

import asyncio
import os
import tempfile
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
CACHE_BYTES = 256 << 20
FAILURE_SECONDS = 60.0

_log = structlog.get_logger("calibrd.rendering")


class Drawing(NamedTuple):
    """A rendering of a version's report; neither ever changes."""

    workspace: str
    version: str
    format: Format

    @property
    def file_name(self) -> str:
        """The name of the cached file, which differs between releases."""
        return f"{self.version}-{metadata.version('calibrd')}.{self.format}"


class Renderer:
    """Renderer of reports, which uses separate processes with a time limit.

    Results are cached in ``folder``; beyond CACHE_BYTES, the least recently used are removed. A
    report that could not be rendered is not retried for a minute.
    """

    def __init__(self, folder: Path, *, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._executor = FairExecutor("render", PROCESSES)
        self._files = FairExecutor("drawings", 2, most_waiting=256)
        self._processes: list[TaskProcess] = []
        self._idle: list[TaskProcess] = []
        self._drawing: dict[Drawing, asyncio.Task[bytes]] = {}
        self._failed: dict[Drawing, float] = {}

    async def render(
        self, drawing: Drawing, load: Callable[[], dict[str, Any]], title: str
    ) -> bytes:
        """Return a rendering, from the cache if possible; ``load`` reads the report."""
        cached = await self._files.run(drawing.workspace, self._cached, drawing)
        if cached is not None:
            return cached
        if self._failed.get(drawing, 0.0) > time.monotonic():
            raise _failed()
        task = self._drawing.get(drawing)
        if task is None:
            task = asyncio.create_task(self._draw(drawing, load, title))
            self._drawing[drawing] = task
            task.add_done_callback(lambda _: self._drawing.pop(drawing, None))
        return await asyncio.shield(task)

    def close(self) -> None:
        """Stop the processes."""
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
        """Render in the most recently used idle process, and cache the result."""
        try:
            process = self._idle.pop()
        except IndexError:
            process = TaskProcess()
            self._processes.append(process)
        try:
            content = process.run("draw", request, self._seconds)
        finally:
            self._idle.append(process)
        self._store(drawing, content)
        return content

    def _note_failure(self, drawing: Drawing) -> None:
        now = time.monotonic()
        self._failed = {one: until for one, until in self._failed.items() if until > now}
        self._failed[drawing] = now + FAILURE_SECONDS

    def _cached(self, drawing: Drawing) -> bytes | None:
        path = self._folder / drawing.file_name
        with suppress(OSError):
            content = path.read_bytes()
            os.utime(path)  # the least recently used files are removed first
            return content
        return None

    def _store(self, drawing: Drawing, content: bytes) -> None:
        """Cache a rendering; errors are only logged, so that the response succeeds."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(content)
            Path(file.name).replace(self._folder / drawing.file_name)
            self._remove_oldest()
        except OSError as error:
            _log.warning("rendering_not_cached", error=type(error).__name__)

    def _remove_oldest(self) -> None:
        found = []
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):
                state = path.stat()
                found.append((state.st_mtime, state.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found, key=lambda one: one[0]):
            if total <= CACHE_BYTES:
                return
            path.unlink(missing_ok=True)
            total -= size


def _failed() -> Unavailable:
    return Unavailable(
        "report_not_drawn",
        "this report could not be rendered in time: try again in a minute, or use report.json",
    )
