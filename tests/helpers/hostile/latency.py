"""Measure the effect on a service's other callers: the latency of ``/healthz``, and memory."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
P99_SECONDS = 0.25
MAX_SECONDS = 0.5
MAX_MEGABYTES = 200
# seconds before and after a delay of the control for which the service is excused
EXCUSED_SECONDS = 0.3


@dataclass
class Watched:
    """The measurements between the start and the end of a block."""

    latencies: np.ndarray = field(default_factory=lambda: np.zeros(0))
    megabytes: float = 0.0

    @property
    def p99(self) -> float:
        """Return the 99th percentile of the latencies, in seconds."""
        return float(np.quantile(self.latencies, 0.99))

    @property
    def slowest(self) -> float:
        """Return the largest latency, in seconds."""
        return float(self.latencies.max())

    def __str__(self) -> str:
        return (
            f"healthz p99 {self.p99 * 1000:.0f} ms, slowest {self.slowest * 1000:.0f} ms of "
            f"{len(self.latencies)}; memory +{self.megabytes:.0f} MB"
        )

    def check(self) -> None:
        """Fail if other callers had to wait, or the process used more memory."""
        assert self.p99 <= P99_SECONDS, str(self)
        assert self.slowest <= MAX_SECONDS, str(self)
        assert self.megabytes <= MAX_MEGABYTES, str(self)


@contextlib.contextmanager
def watching(port: int, pid: int) -> Iterator[Watched]:
    """Measure while the block runs; latencies exclude those of a control on this machine."""
    watched = Watched()
    with _control() as control, _probe(port, control) as probe:
        before = memory(pid)
        with _peak_memory(pid) as peak:
            yield watched
        watched.megabytes = peak[0] - before
        found, beside = probe()
    watched.latencies = _excess(np.array(found), np.array(beside))


def memory(pid: int) -> float:
    """Return the resident memory of a process and its children, in megabytes."""
    return sum(_resident(one) for one in (pid, *_children(pid)))


def _resident(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
    return 0.0


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


@contextlib.contextmanager
def _peak_memory(pid: int) -> Iterator[list[float]]:
    peak, ended = [memory(pid)], threading.Event()

    def look() -> None:
        while not ended.wait(0.01):
            peak[0] = max(peak[0], memory(pid))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def _control() -> Iterator[int]:
    command = [sys.executable, str(HERE / "control_server.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


@contextlib.contextmanager
def _probe(port: int, control: int):
    command = [sys.executable, str(HERE / "healthz_probe.py"), str(port), str(control)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline().strip() == "ready"
        time.sleep(0.2)

        def end() -> list[list[tuple[float, float]]]:
            time.sleep(0.1)
            return json.loads(process.communicate(timeout=150)[0])

        try:
            yield end
        finally:
            process.kill()


def _excess(found: np.ndarray, control: np.ndarray) -> np.ndarray:
    """Return the latencies minus the control's largest latency at about the same time."""
    times, latencies = found[:, 0], found[:, 1]
    width = EXCUSED_SECONDS
    first = np.searchsorted(control[:, 0], times - width)
    last = np.searchsorted(control[:, 0], times + latencies + width)
    beside = [control[a:b, 1].max(initial=0.0) for a, b in zip(first, last, strict=True)]
    return np.maximum(latencies - np.array(beside), 0.0)
