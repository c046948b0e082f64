"""Progress bars for terminals and notebooks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import Any, Self

from calibrd.models import Fit
from calibrd.terminal import printable


class ProgressBar:
    """A tqdm bar; a no-op if ``shown`` is false, or outside terminals and notebooks."""

    def __init__(self, total: int | None, words: str, *, shown: bool, **options: Any) -> None:
        self._bar: Any = None
        self._lock = threading.Lock()  # parts are sent by several threads
        if shown and (_is_terminal() or _is_notebook()):
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total, desc=words, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, count: int) -> None:
        """Advance the bar by ``count``."""
        if self._bar is not None:
            with self._lock:
                self._bar.update(count)

    def reach(self, done: int, **facts: Any) -> None:
        """Advance the bar to ``done`` and show ``facts`` after it."""
        if self._bar is not None:
            with self._lock:
                self._bar.update(max(0, done - self._bar.n))
                self._bar.set_postfix(facts)


class FitProgress(ProgressBar):
    """The progress bar of a fit on the service: method, step, loss and remaining time."""

    TICKS = 1000

    def __init__(self, fit: Fit, *, shown: bool) -> None:
        form = "{desc}: {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}{postfix}]"
        super().__init__(self.TICKS, fit.calibrator, shown=shown, bar_format=form)
        self.show(fit)

    def show(self, fit: Fit) -> None:
        """Show the current progress of the fit."""
        progress = fit.progress or {}
        step, total = _count(progress, "step", 0), _count(progress, "total", 1)
        share = step / max(1, total)
        done = self.TICKS * (_count(progress, "methods_done", 0) + share)
        done = min(done / max(1, _count(progress, "methods", 1)), self.TICKS)
        facts = {} if progress.get("method") is None else {"method": printable(progress["method"])}
        if total > 1:
            facts["step"] = f"{step}/{total}"
        if isinstance(progress.get("loss"), float):
            facts["loss"] = f"{progress['loss']:.4f}"
        if fit.status == "queued":
            facts["status"] = "waiting for a worker"
        self.reach(self.TICKS if fit.status == "succeeded" else round(done), **facts)


def _is_terminal() -> bool:
    """Return whether stderr is a terminal; in a file, every update would add a line."""
    return sys.stderr is not None and sys.stderr.isatty()


def _is_notebook() -> bool:
    """Return whether this process is a notebook kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config


def _count(progress: Mapping[str, Any], name: str, default: int) -> int:
    """Return a number from the service's progress; the default if it is missing or implausible."""
    value = progress.get(name)
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else default
