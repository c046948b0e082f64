"""Monitor calibration during training with any loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from calibrators.adafocal import Summary
from calibrators.metrics import ClassAgreement
from calibrd.io.arrays import as_array
from calibrd.training.observer import (
    BUDGET_SECONDS,
    IGNORED,
    Observer,
    checkpoint_entry,
    flat_rows,
)
from calibrd.training.reporting.reporter import Service
from calibrd.training.reporting.sessions import Start


class Monitor(Observer):
    """A monitor that streams the calibration of each validation pass to the service as a step.

    ``client`` is a client or a URL; with None, nothing is sent. An unavailable service or a full
    disk does not stop training: no call waits longer than ``budget`` seconds, and unsent steps are
    stored in ``folder``. The run continues after its last step, from 0 with ``fresh``, or from the
    ``state_dict`` passed as ``resume``. The ranks are those of torch.distributed; without it, pass
    ``rank``, ``world_size`` and a shared ``session``. NumPy arrays and tensors are accepted; torch
    is not required.

    With ``diagnose``, ``agreement`` holds the diagnostics of the SECA paper after each step:
    entropy, KL divergence and cosine (``calibrators.metrics.ClassAgreement``), over the classes of
    each observed batch and all ranks of torch.distributed. They cost an extra pass over the classes
    on the CPU and are not sent.

    >>> monitor = Monitor(None, run="resnet")
    >>> monitor.observe([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]], [0, 1, 0])
    >>> summary = monitor.step()
    >>> monitor.steps, summary.rows, round(summary.accuracy, 3)
    (1, 3, 0.667)
    >>> monitor = Monitor(None, run="resnet", diagnose=True)
    >>> monitor.observe([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]], [0, 1, 1])
    >>> _ = monitor.step()
    >>> round(monitor.agreement.cosine, 3)
    0.992
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
        diagnose: bool = False,
    ) -> None:
        self.agreement: ClassAgreement | None = None  # of the last pass, with diagnose
        self._observed_agreement = ClassAgreement() if diagnose else None
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

    def observe(self, logits: Any, labels: Any) -> None:
        """Add a batch of the validation pass: logits (n, k) or (n, k, d1, ...) and labels."""
        super().observe(logits, labels)
        if self._observed_agreement is not None:
            self._observed_agreement += agreement_of(logits, labels, self.ignore_index)

    def discard(self) -> None:
        """Discard the rows observed since the last step."""
        super().discard()
        if self._observed_agreement is not None:
            self._observed_agreement = ClassAgreement()

    def step(self) -> Summary:
        """End a validation pass and return its summary over all ranks that communicate."""
        summary = super().step()
        if self._observed_agreement is not None:
            parts = self._ranks.gathered(self._observed_agreement)
            self.agreement = sum(parts, ClassAgreement())
            self._observed_agreement = ClassAgreement()
        return summary

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"run": self.run, "step": self._steps}

    def load_state_dict(self, document: dict[str, Any]) -> None:
        """Continue from the step of a checkpoint."""
        self._steps = _step_in(document)
        self._note_checkpoint(document)


def agreement_of(logits: Any, labels: Any, ignore_index: int = IGNORED) -> ClassAgreement:
    """Return how well the predictions in a batch agree with the mean prediction of their class.

    >>> round(agreement_of([[2.0, 0.0], [0.0, 1.0], [9.0, 9.0]], [0, 0, -100]).kl_divergence, 3)
    0.918
    """
    rows, truth = flat_rows(
        as_array(logits, "logits"), as_array(labels, "labels").astype(np.intp), ignore_index
    )
    if rows.ndim == 1 or rows.shape[1] == 1:  # logits of class 1
        rows = np.stack([np.zeros(len(truth)), rows.reshape(-1)], axis=1)
    return ClassAgreement.from_logits(rows, truth)


def _step_in(checkpoint: object) -> int:
    """Return the step in a monitor's checkpoint; raise ValueError if there is none."""
    step = checkpoint_entry(checkpoint, "step")
    if not isinstance(step, int) or step < 0:
        raise ValueError(f"a checkpoint's step must be a non-negative integer, got {step!r}")
    return step
