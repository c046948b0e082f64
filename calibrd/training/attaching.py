"""What the callbacks share: AdaFocal or a Monitor that is made when the framework begins to train.

Only then are the ranks and the checkpoint known.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from calibrators.errors import DataError
from calibrators.losses import AdaFocalLoss
from calibrd.training.link import Service, connection_of
from calibrd.training.monitor import Monitor
from calibrd.training.observing import IGNORED
from calibrd.training.steering import AdaFocal

Observing = AdaFocal | Monitor
Document = dict[str, Any]


class Attached:
    """Makes it anew for every training, observes and steps while that goes on, and closes it."""

    def __init__(self, make: Callable[..., Observing], hint: str) -> None:
        self._make = make
        self._hint = hint
        self._checkpoint: Document | None = None
        self._is_on = False
        self.observing: Observing | None = None

    @property
    def is_on(self) -> bool:
        """Whether training goes on."""
        return self._is_on

    def begin(self) -> None:
        """Training begins."""
        self.observing = self._make(resume=self._checkpoint)
        self._checkpoint = None
        self._is_on = True

    def observe(self, logits: Any, labels: Any) -> None:
        """Take a batch, if it is of a validation pass of the training."""
        if self.observing is not None and self._is_on:
            self.observing.observe(logits, labels)

    def step(self) -> None:
        """A validation pass has ended."""
        if self.observing is None or not self._is_on:
            return
        try:
            self.observing.step()
        except DataError as error:
            if error.code == "empty":
                error.add_note(self._hint)
            raise

    def discard(self) -> None:
        """What was observed was no validation pass."""
        if self.observing is not None:
            self.observing.discard()

    def end(self) -> None:
        """Training has ended, well or not."""
        self._is_on = False
        if self.observing is not None:
            self.observing.close()

    def state_dict(self) -> Document:
        """What the framework's checkpoint keeps."""
        if self.observing is None:
            return self._checkpoint or {}
        return self.observing.state_dict()

    def load_state_dict(self, document: Document) -> None:
        """Go on from a checkpoint: now, or when training begins."""
        if self.observing is not None and self._is_on:
            self.observing.load_state_dict(document)
        elif document:
            self._checkpoint = document


def attached_loss(
    client: Service,
    run: str,
    *,
    hint: str,
    loss: AdaFocalLoss | None = None,
    ignore_index: int = IGNORED,
    budget: float,
    fresh: bool,
    folder: Any,
    **settings: Any,
) -> tuple[AdaFocalLoss, Attached]:
    """A loss that can be given to a model now, and what steers it once training begins."""
    if loss is None:
        loss = AdaFocalLoss(ignore_index=ignore_index, **settings)
    elif settings or ignore_index != IGNORED:
        raise ValueError("give a loss, or its settings and ignore_index, not both")
    options = {"budget": budget, "fresh": fresh, "folder": folder}
    made = partial(AdaFocal, connection_of(client), run, loss=loss, **options)
    return loss, Attached(made, hint)


def attached_monitor(client: Service, run: str, *, hint: str, **options: Any) -> Attached:
    """A monitor once training begins."""
    return Attached(partial(Monitor, connection_of(client), run, **options), hint)
