"""A live monitor of calibration, for training with any loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calibrd.training.observer import BUDGET_SECONDS, IGNORED, Observer, checkpoint_entry
from calibrd.training.reporting.reporter import Service
from calibrd.training.reporting.sessions import Start


class Monitor(Observer):
    """Streams the calibration of each validation pass to the service, as steps of a run.

    ``client`` is a client, a URL, or None to stay in this process. Neither an unavailable service
    nor a full disk stops training: no call waits longer than ``budget`` seconds. The run continues
    after its last step, from 0 with ``fresh``, or from the ``state_dict`` passed as ``resume``.
    Ranks come from torch.distributed, or are passed with a ``session`` that they share. Unsent
    steps wait in ``folder``. It takes numpy arrays as well as tensors, and does not need torch.

    >>> monitor = Monitor(None, run="resnet")
    >>> monitor.observe([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]], [0, 1, 0])
    >>> summary = monitor.step()
    >>> monitor.steps, summary.rows, round(summary.accuracy, 3)
    (1, 3, 0.667)
    """

    kind = "monitor"

    def __init__(
        self,
        client: Service,
        run: str,
        *,
        ignore_index: int = IGNORED,
        budget: float = BUDGET_SECONDS,
        rank: int | None = None,
        world_size: int | None = None,
        session: str | None = None,
        fresh: bool = False,
        resume: dict[str, Any] | None = None,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__(
            client,
            run,
            None,
            Start() if resume is None else Start(_step_in(resume)),
            ignore_index=ignore_index,
            budget=budget,
            rank=rank,
            world_size=world_size,
            session=session,
            fresh=fresh or resume is not None,
            folder=folder,
        )
        self._note_checkpoint(resume)

    @property
    def steps(self) -> int:
        """The number of the last step."""
        return self._steps

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"run": self.run, "step": self._steps}

    def load_state_dict(self, document: dict[str, Any]) -> None:
        """Continue from the step of a checkpoint."""
        self._steps = _step_in(document)
        self._note_checkpoint(document)


def _step_in(checkpoint: object) -> int:
    """Return the step of a monitor's checkpoint; raise ValueError if it has none."""
    step = checkpoint_entry(checkpoint, "step")
    if not isinstance(step, int) or step < 0:
        raise ValueError(f"a checkpoint's step must be a non-negative integer, got {step!r}")
    return step
