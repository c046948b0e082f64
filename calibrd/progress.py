"""Progress bars, in terminals and notebooks."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

from calibrd.results import Fit


class Progress:
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


class FitProgress(Progress):
    """The bar of a fit on the service: method, step, loss, and the time it still takes."""

    TICKS = 1000

    def __init__(self, fit: Fit, *, shown: bool) -> None:
        form = "{desc}: {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}{postfix}]"
        super().__init__(self.TICKS, fit.calibrator, shown=shown, bar_format=form)
        self.show(fit)

    def show(self, fit: Fit) -> None:
        """What is known of the fit now."""
        told = fit.progress or {}
        methods = max(1, int(told.get("methods", 1)))
        share = (int(told.get("step", 0)) / max(1, int(told.get("total", 1)))) if told else 0.0
        done = self.TICKS * (int(told.get("methods_done", 0)) + share) / methods
        facts = {} if told.get("method") is None else {"method": told["method"]}
        if int(told.get("total", 1)) > 1:
            facts["step"] = f"{told.get('step', 0)}/{told['total']}"
        if told.get("loss") is not None:
            facts["loss"] = f"{told['loss']:.4f}"
        if fit.status == "queued":
            facts["status"] = "waits for a worker"
        self.reach(self.TICKS if fit.status == "succeeded" else round(done), **facts)
