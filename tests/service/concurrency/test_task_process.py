"""Processes for tasks: few are started, and idle ones end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.concurrency import task_process
from service.concurrency.task_process import TaskProcess
from service.registry.reports.renderer import Drawing, Renderer

ECHO = """
import sys
while length := sys.stdin.buffer.read(8):
    sys.stdin.buffer.read(int.from_bytes(length, "little"))
    sys.stdout.buffer.write((3).to_bytes(8, "little") + b"\\0ok")
    sys.stdout.buffer.flush()
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_process, "COMMAND", (sys.executable, "-S", "-c", ECHO))


@pytest.fixture
def process() -> Iterator[TaskProcess]:
    made = TaskProcess()
    yield made
    made.end()


def test_an_idle_process_ends_and_the_next_task_starts_another(
    process: TaskProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert process.run("any", {}, 10) == b"ok"
    first = process._process
    assert first is not None
    monkeypatch.setattr(task_process, "IDLE_SECONDS", 0.2)
    assert process.run("any", {}, 10) == b"ok"
    assert process._process is first
    first.wait(10)
    assert process.run("any", {}, 10) == b"ok"
    assert process._process is not first


def test_the_reports_of_one_workspace_are_drawn_by_one_process(tmp_path: Path) -> None:
    async def check() -> None:
        renderer = Renderer(tmp_path, seconds=10)
        report: dict[str, Any] = {}
        drawings = [Drawing("ws", f"ver_{number}", "svg") for number in range(8)]
        try:
            made = [renderer.render(one, lambda: report, "any") for one in drawings]
            assert await asyncio.gather(*made) == [b"ok"] * 8
            assert len(renderer._processes) == 1
        finally:
            renderer.close()

    asyncio.run(check())
