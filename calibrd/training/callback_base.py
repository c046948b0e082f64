"""What the callbacks share: AdaFocal or a Monitor that is made when the framework begins to train.

Only then are the ranks and the checkpoint known.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from calibrators.errors import DataError
from calibrators.losses import Loss, make_loss
from calibrators.losses.adafocal import AdaFocalLoss
from calibrd.training.adafocal import AdaFocal
from calibrd.training.monitor import Monitor
from calibrd.training.observer import BUDGET_SECONDS, IGNORED
from calibrd.training.reporting.reporter import Service, connection_of
from calibrd.training.reporting.sessions import Kind

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


class Attaching:
    """A callback of any framework: it tells what is attached of the training."""

    kind: ClassVar[Kind]
    hint: ClassVar[str]  # what to do if nothing was observed
    run: str
    loss: Loss | None
    _attached: Attached

    def _attach(
        self, make: Callable[..., Observing], client: Service, run: str, **options: Any
    ) -> None:
        if self.loss is not None:
            self._check(self.loss)
        self.run = run
        self._attached = Attached(partial(make, connection_of(client), run, **options), self.hint)

    def _check(self, loss: Loss) -> None:
        """Raise if the framework cannot train with it."""


class Steering(Attaching):
    """Steers a loss that can be given to a model now, once training begins."""

    kind = "adafocal"
    loss: AdaFocalLoss

    def __init__(
        self,
        client: Service,
        run: str,
        *,
        loss: AdaFocalLoss | str | None = None,
        budget: float = BUDGET_SECONDS,
        fresh: bool = False,
        folder: str | Path | None = None,
        ignore_index: int = IGNORED,
        **settings: Any,
    ) -> None:
        super().__init__()
        if loss is None or isinstance(loss, str):
            steered = make_loss(loss or "adafocal", ignore_index=ignore_index, **settings)
        elif settings or ignore_index != IGNORED:
            raise ValueError("give a loss, or its settings and ignore_index, not both")
        else:
            steered = loss
        if not isinstance(steered, AdaFocalLoss):
            raise ValueError(f"only adafocal and calfocal are steered, got {_called(steered)}")
        self.loss = steered
        options = {"budget": budget, "fresh": fresh, "folder": folder}
        self._attach(AdaFocal, client, run, loss=steered, **options)


class Watching(Attaching):
    """Watches a training with any loss, once it begins.

    ``loss`` is one of ``make_loss``, by name (with its parameters) or made; it is told when an
    epoch has ended.
    """

    kind = "monitor"

    def __init__(
        self,
        client: Service,
        run: str,
        *,
        loss: str | Loss | None = None,
        budget: float = BUDGET_SECONDS,
        fresh: bool = False,
        folder: str | Path | None = None,
        ignore_index: int = IGNORED,
        **params: Any,
    ) -> None:
        super().__init__()
        if isinstance(loss, str):
            loss = make_loss(loss, ignore_index=ignore_index, **params)
        elif params:
            raise ValueError(f"{', '.join(params)}: parameters go with the name of a loss")
        if loss is not None:
            ignore_index = _watched(loss).ignore_index
        self.loss = loss
        self.ignore_index = ignore_index
        options = {"budget": budget, "fresh": fresh, "folder": folder}
        self._attach(Monitor, client, run, ignore_index=ignore_index, **options)


def _watched(loss: Loss) -> Loss:
    """A loss that a monitor can be given."""
    if not isinstance(loss, Loss):
        raise ValueError(f"loss must be a name or a loss of make_loss, got {_called(loss)}")
    inner = getattr(loss, "calibration", loss)  # RefCal's
    if isinstance(inner, AdaFocalLoss):
        raise ValueError(
            f"nothing would steer {inner.name}: take AdaFocalCallback(loss={inner.name!r})"
        )
    return loss


def _called(loss: Any) -> str:
    return str(getattr(loss, "name", None) or type(loss).__name__)


def callback_class(
    module: str, name: str, made: dict[str, type], bases: Callable[[], tuple[type, ...]]
) -> type:
    """A callback with the classes of a framework, which is loaded only for those who ask for it."""
    if name not in made:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    about = {"__module__": module, "__doc__": made[name].__doc__}
    return type(name, (made[name], *bases()), about)
