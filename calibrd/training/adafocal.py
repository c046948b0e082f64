"""AdaFocal: the loss, the validation passes that update it, and the run that records them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

try:
    from calibrators.losses.adafocal import AdaFocalLoss
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "calibrd.training.AdaFocal needs torch: pip install 'calibrd[train]'", name=error.name
    ) from error

from calibrators.adafocal import AdaFocalState
from calibrd.training.observer import BUDGET_SECONDS, IGNORED, Observer, checkpoint_entry
from calibrd.training.reporting.reporter import Service
from calibrd.training.reporting.sessions import Start


class AdaFocal(Observer):
    """A focal loss that adapts to the model's calibration, and the run that records it.

    In each validation pass, call ``observe`` with every batch, then ``step``, which updates the
    gammas of ``loss``. ``settings`` are fields of ``calibrators.adafocal.Settings`` (``bins``,
    ``rate``, ...); alternatively, pass your own ``loss``. ``client`` is a client or a URL; with
    None, nothing is sent.

    The update runs in this process, on the statistics of all ranks of torch.distributed; the
    service records and verifies it. An unavailable service or a full disk does not affect training:
    no call waits longer than ``budget`` seconds, and unsent steps are stored in ``folder`` until
    this process or the next one sends them.

    The run continues from its last state, from the start with ``fresh``, or from the ``state_dict``
    of a checkpoint passed as ``resume``. Without torch.distributed, each of several ranks passes
    ``rank``, ``world_size`` and a shared ``session``. The service then merges the statistics and
    updates the state; a rank that gets no response within the budget updates the state with its own
    statistics until the service responds.

    >>> import torch
    >>> steered = AdaFocal(None, run="resnet", rate=10.0)
    >>> logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 1, 0])
    >>> loss = steered.loss(logits, labels)
    >>> steered.observe(logits, labels)
    >>> steered.step().rows, steered.state.step
    (3, 1)
    """

    kind = "adafocal"

    def __init__(
        self,
        client: Service,
        run: str,
        *,
        loss: AdaFocalLoss | None = None,
        budget: float = BUDGET_SECONDS,
        rank: int | None = None,
        world_size: int | None = None,
        session: str | None = None,
        fresh: bool = False,
        resume: dict[str, Any] | None = None,
        folder: str | Path | None = None,
        ignore_index: int = IGNORED,
        **settings: Any,
    ) -> None:
        if loss is not None and (settings or ignore_index != IGNORED):
            raise ValueError("pass either loss, or settings and ignore_index, but not both")
        if not isinstance(loss, AdaFocalLoss | None):
            raise TypeError(f"loss must be an AdaFocalLoss, got {type(loss).__name__}")
        self.loss = AdaFocalLoss(ignore_index=ignore_index, **settings) if loss is None else loss
        if resume is not None:
            self._load(resume)
        first = self.loss.state
        super().__init__(
            client,
            run,
            self.loss,
            Start(first.step, first),
            ignore_index=self.loss.ignore_index,
            budget=budget,
            rank=rank,
            world_size=world_size,
            session=session,
            fresh=fresh or resume is not None or first.step > 0,
            folder=folder,
        )
        self._note_checkpoint(resume)

    @property
    def state(self) -> AdaFocalState:
        """The current bins and gammas."""
        return self.loss.state

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: plain numbers and strings."""
        return {"run": self.run, "state": self.loss.state.to_dict()}

    def load_state_dict(self, document: dict[str, Any]) -> None:
        """Continue from the step of a checkpoint, in a new session of the run."""
        self._load(document)
        self._note_checkpoint(document)

    def _load(self, document: dict[str, Any]) -> None:
        state = AdaFocalState.from_dict(checkpoint_entry(document, "state"))
        if state.settings != self.loss.state.settings:
            raise ValueError(
                f"the checkpoint has {state.settings}, "
                f"but this AdaFocal has {self.loss.state.settings}"
            )
        self.loss.state = state
