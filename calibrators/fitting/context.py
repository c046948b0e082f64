"""What a running fit knows of its caller: the device, whom to tell, when to stop."""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Callable
from typing import Protocol

from calibrators.errors import CalibrationWarning, FitCancelled, FitError


class ProgressCallback(Protocol):
    """Called as a fit goes on: the step just done, of how many, and the loss if there is one."""

    def __call__(self, step: int, total: int, loss: float | None) -> None: ...


class FitContext:
    """What a running fit knows of its caller: the device, whom to tell, when to stop.

    ``seconds`` is where a fit notes how long its parts took; they are no part of the map, which is
    the same for the same data.
    """

    def __init__(
        self,
        device: str = "cpu",
        progress: ProgressCallback | None = None,
        cancel: Callable[[], bool] | None = None,
    ) -> None:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", str(device)):
            raise FitError(
                "device_unavailable", f"device must be cpu, cuda or cuda:N, got {device!r}"
            )
        self.device = device
        self.seconds: dict[str, float] = {}
        self.warned: list[tuple[type[CalibrationWarning], str]] = []
        self._progress = progress
        self._cancel = cancel

    def step(self, step: int, total: int, loss: float | None = None) -> None:
        """Report a finished step; raises FitCancelled if the caller wants no more."""
        self.cancelled()
        if self._progress is not None:
            self._progress(step, total, loss)

    def cancelled(self) -> None:
        """Raise FitCancelled if the caller wants no more."""
        if self._cancel is not None and self._cancel():
            raise FitCancelled

    def inner(self, deadline: float = math.inf) -> FitContext:
        """For a fit inside this one: can be cancelled, keeps its own warnings, is silent.

        From ``deadline`` on, in seconds of ``time.monotonic``, it is cancelled as well.
        """

        def stop() -> bool:
            asked = self._cancel is not None and self._cancel()
            return asked or time.monotonic() >= deadline

        return FitContext(self.device, None, stop)

    def without_progress(self) -> FitContext:
        """For a part of this fit that has steps of its own: the same warnings, no progress."""
        part = self.inner()
        part.warned, part.seconds = self.warned, self.seconds
        return part

    def part(self, start: int, end: int, whole: int) -> FitContext:
        """For a fit inside this one: the same warnings, its progress from ``start`` to ``end``."""

        def advance(step: int, total: int, loss: float | None) -> None:
            self.step(start + (end - start) * step // max(1, total), whole, loss)

        part = FitContext(self.device, advance, self._cancel)
        part.warned, part.seconds = self.warned, self.seconds
        return part

    def warn(self, category: type[CalibrationWarning], message: str) -> None:
        """Keep a warning for the map's ``fit_info``; ``Calibrator.fit`` issues it at its end."""
        self.warned.append((category, message))

    def issue_warnings(self, stacklevel: int = 2) -> None:
        """Issue the warnings kept so far as Python's."""
        for category, message in self.warned:
            warnings.warn(message, category, stacklevel=stacklevel + 1)

    @property
    def warnings(self) -> list[dict[str, str]]:
        """The warnings so far as plain JSON."""
        return [{"code": category.code, "message": message} for category, message in self.warned]
