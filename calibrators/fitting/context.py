"""Context of a running fit: device, progress, cancellation and warnings."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from typing import Protocol

from calibrators.errors import CalibrationWarning, FitCancelled, FitError, warn_user


class ProgressCallback(Protocol):
    """Callback that receives the last finished step, the number of steps, and the loss or None."""

    def __call__(self, step: int, total: int, loss: float | None) -> None:
        """Receive the progress of a fit."""


class FitContext:
    """Context of a running fit: device, progress, cancellation and warnings.

    A fit records in ``seconds`` how long its parts took. These times are kept out of the map, so
    that the same data give the same map.
    """

    def __init__(
        self,
        device: str = "cpu",
        progress: ProgressCallback | None = None,
        cancel: Callable[[], bool] | None = None,
    ) -> None:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", str(device)):
            raise FitError(
                "device_unavailable", f"device must be 'cpu', 'cuda' or 'cuda:N', got {device!r}"
            )
        self.device = device
        self.seconds: dict[str, float] = {}
        self.warned: list[tuple[type[CalibrationWarning], str]] = []
        self._progress = progress
        self._cancel = cancel

    def step(self, step: int, total: int, loss: float | None = None) -> None:
        """Report a finished step; raise FitCancelled if the caller has cancelled."""
        self.cancelled()
        if self._progress is not None:
            self._progress(step, total, loss)

    def cancelled(self) -> None:
        """Raise FitCancelled if the caller has cancelled."""
        if self._cancel is not None and self._cancel():
            raise FitCancelled

    def inner(self, deadline: float = math.inf) -> FitContext:
        """Return a context for a fit within this one, without progress and with its own warnings.

        It is cancelled together with this context, or at ``deadline`` (on the clock of
        ``time.monotonic``).
        """

        def stop() -> bool:
            is_cancelled = self._cancel is not None and self._cancel()
            return is_cancelled or time.monotonic() >= deadline

        return FitContext(self.device, None, stop)

    def without_progress(self) -> FitContext:
        """Return a context for a part of this fit, with the same warnings and without progress."""
        part = self.inner()
        part.warned, part.seconds = self.warned, self.seconds
        return part

    def part(self, start: int, end: int, whole: int) -> FitContext:
        """Return a context with the same warnings and with progress from ``start`` to ``end``."""

        def advance(step: int, total: int, loss: float | None) -> None:
            self.step(start + (end - start) * step // max(1, total), whole, loss)

        part = FitContext(self.device, advance, self._cancel)
        part.warned, part.seconds = self.warned, self.seconds
        return part

    def warn(self, category: type[CalibrationWarning], message: str) -> None:
        """Record a warning for the map's ``fit_info``; ``Calibrator.fit`` issues it at the end."""
        self.warned.append((category, message))

    def issue_warnings(self) -> None:
        """Issue the recorded warnings as Python warnings."""
        for category, message in self.warned:
            warn_user(message, category)

    @property
    def warnings(self) -> list[dict[str, str]]:
        """The recorded warnings as plain JSON."""
        return [{"code": category.code, "message": message} for category, message in self.warned]
