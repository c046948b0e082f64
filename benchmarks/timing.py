"""Alternating timing: each contender runs once per round, so noise affects all of them equally.

The effect is not quite equal: OpenMP programs (torch) suffer more than others if another process
needs a core, so `ForeignLoad` reports how busy other processes were.
"""

import contextlib
import faulthandler
import gc
import io
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SETTLE_SECONDS = 0.01
HANG_SECONDS = 900


@dataclass(frozen=True)
class Contender:
    """A name and the timed call."""

    name: str
    run: Callable[[], Any]


@dataclass
class Measured:
    """Seconds by round; the warm-up is round -1, kept only if there was no time for more."""

    name: str
    seconds: dict[int, float] = field(default_factory=dict)
    value: Any = None
    error: str | None = None

    @property
    def median(self) -> float | None:
        """Median seconds; None if there was no run."""
        return statistics.median(self.seconds.values()) if self.seconds else None

    @property
    def fastest(self) -> float | None:
        """The minimum of the seconds; None if there was no run."""
        return min(self.seconds.values(), default=None)

    @property
    def runs(self) -> int:
        """Number of timed runs."""
        return len(self.seconds)


class ForeignLoad:
    """Number of cores that other processes have used since its creation, from /proc/stat."""

    def __init__(self) -> None:
        self._start = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        user, nice, system, _, _, irq, softirq, *_ = (
            int(part) for part in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        )
        busy = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), busy, sum(os.times()[:4])

    @property
    def cores(self) -> float:
        """Return the number of cores that other processes have used so far."""
        wall, busy, own = (now - then for now, then in zip(self._now(), self._start, strict=True))
        return max(0.0, (busy - own) / wall)


@contextlib.contextmanager
def no_hang() -> Iterator[None]:
    """End the whole run, with the tracebacks of all threads, if the body never returns."""
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Suppress the output, progress bars and warnings of other libraries."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def alternate(
    contenders: Sequence[Contender], rounds: int, budget: float = 60.0
) -> dict[str, Measured]:
    """Warm up all contenders, then run `rounds` rounds; none exceeds `budget` seconds in total.

    A contender that raises is kept with its error. If its warm-up alone exceeds the budget, the
    warm-up is used as its measurement.
    """
    results = {contender.name: Measured(contender.name) for contender in contenders}
    spent: dict[str, float] = {}
    for contender in contenders:
        spent[contender.name] = _run(contender, results[contender.name], -1)
    for turn in range(rounds):
        shift = turn % len(contenders)
        for contender in (*contenders[shift:], *contenders[:shift]):
            result = results[contender.name]
            last = next(reversed(result.seconds.values()), 0.0)
            if result.error is None and spent[contender.name] + last <= budget:
                spent[contender.name] += _run(contender, result, turn)
    for result in results.values():
        if result.runs > 1:
            result.seconds.pop(-1)
    return results


def _run(contender: Contender, result: Measured, turn: int) -> float:
    gc.collect()
    time.sleep(SETTLE_SECONDS)  # thread pools of the previous contender stop spinning
    start = time.perf_counter()
    try:
        with silence(), no_hang():
            start = time.perf_counter()
            result.value = contender.run()
            seconds = time.perf_counter() - start
    except Exception as error:  # noqa: BLE001 - a rival may fail in any way; the table says how
        result.error = f"{type(error).__name__}: {error}".splitlines()[0]
        result.seconds.clear()
        return time.perf_counter() - start
    result.seconds[turn] = seconds
    return seconds


def milliseconds(seconds: float | None) -> float | None:
    """Return seconds in milliseconds; None stays None."""
    return None if seconds is None else 1e3 * seconds


def ratio(ours: Measured, rival: Measured) -> float | None:
    """Return the median over common rounds of our time divided by the competitor's."""
    shared = ours.seconds.keys() & rival.seconds.keys()
    if shared:
        return statistics.median(ours.seconds[turn] / rival.seconds[turn] for turn in shared)
    if ours.median is None or rival.median is None:
        return None
    return ours.median / rival.median
