"""Progress bars, in terminals and notebooks."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from calibrd.models import Fit
from calibrd.terminal import printable


class ProgressBar:
    """A bar of tqdm, or nothing if it is not shown."""

    def __init__(self, total: int | None, words: str, *, shown: bool, **options: Any) -> None:
        self._bar: Any = None
        self._lock = threading.Lock()  # parts are sent by several threads
        if shown:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, desc=words, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, count: int) -> None:
        """So much more is done."""
        if self._bar is not None:
            with self._lock:
                self._bar.update(count)

    def reach(self, done: int, **facts: Any) -> None:
        """So much is done in all."""
        if self._bar is not None:
            with self._lock:
                self._bar.update(max(0, done - self._bar.n))
                self._bar.set_postfix(facts)


class FitProgress(ProgressBar):
    """The bar of a fit on the service: method, step, loss, and the time it still takes."""

    TICKS = 1000

    def __init__(self, fit: Fit, *, shown: bool) -> None:
        form = "{desc}: {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}{postfix}]"
        super().__init__(self.TICKS, fit.calibrator, shown=shown, bar_format=form)
        self.show(fit)

    def show(self, fit: Fit) -> None:
        """What is known of the fit now."""
        told = fit.progress or {}
        step, total = _count(told, "step", 0), _count(told, "total", 1)
        share = step / max(1, total)
        done = self.TICKS * (_count(told, "methods_done", 0) + share)
        done = min(done / max(1, _count(told, "methods", 1)), self.TICKS)
        facts = {} if told.get("method") is None else {"method": printable(told["method"])}
        if total > 1:
            facts["step"] = f"{step}/{total}"
        if isinstance(told.get("loss"), float):
            facts["loss"] = f"{told['loss']:.4f}"
        if fit.status == "queued":
            facts["status"] = "waits for a worker"
        self.reach(self.TICKS if fit.status == "succeeded" else round(done), **facts)


def _count(told: Mapping[str, Any], name: str, default: int) -> int:
    """Return a number that the service tells; the default if it is no sensible one."""
    value = told.get(name)
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else default
