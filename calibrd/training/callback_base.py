"""Base classes of the callbacks, which create an AdaFocal or a Monitor when training begins.

The ranks and the checkpoint are unknown until then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from calibrators.errors import DataError
from calibrators.losses import Loss, make_loss
from calibrators.losses.adafocal import AdaFocalLoss
from calibrators.metrics import ClassAgreement
from calibrd.training.adafocal import AdaFocal
from calibrd.training.monitor import Monitor
from calibrd.training.observer import BUDGET_SECONDS, IGNORED
from calibrd.training.reporting.reporter import Service, connection_of
from calibrd.training.reporting.sessions import Kind

AnyObserver = AdaFocal | Monitor
Document = dict[str, Any]


class AttachedObserver:
    """A callback's observer, which is created when training begins and closed when it ends."""

    def __init__(self, make: Callable[..., AnyObserver], hint: str) -> None:
        self._make = make
        self._hint = hint
        self._checkpoint: Document | None = None
        self._is_on = False
        self.observing: AnyObserver | None = None

    @property
    def is_on(self) -> bool:
        """True while training is in progress."""
        return self._is_on

    def begin(self) -> None:
        """Create the observer at the start of training."""
        self.observing = self._make(resume=self._checkpoint)
        self._checkpoint = None
        self._is_on = True

    def observe(self, logits: Any, labels: Any) -> None:
        """Observe a batch if training is in progress."""
        if self.observing is not None and self._is_on:
            self.observing.observe(logits, labels)

    def step(self) -> None:
        """End a validation pass."""
        if self.observing is None or not self._is_on:
            return
        try:
            self.observing.step()
        except DataError as error:
            if error.code == "empty":
                error.add_note(self._hint)
            raise

    def discard(self) -> None:
        """Discard observed batches that are not part of a validation pass."""
        if self.observing is not None:
            self.observing.discard()

    def end(self) -> None:
        """Close the observer when training ends, successfully or not."""
        self._is_on = False
        if self.observing is not None:
            self.observing.close()

    def state_dict(self) -> Document:
        """Return the state for the framework's checkpoint."""
        if self.observing is None:
            return self._checkpoint or {}
        return self.observing.state_dict()

    def load_state_dict(self, document: Document) -> None:
        """Continue from a checkpoint, now or when training begins."""
        if self.observing is not None and self._is_on:
            self.observing.load_state_dict(document)
        elif document:
            self._checkpoint = document


class CallbackBase:
    """Base class for the callbacks of all frameworks; forwards training events to an observer."""

    kind: ClassVar[Kind]
    hint: ClassVar[str]  # advice if nothing was observed
    run: str
    loss: Loss | None
    _attached: AttachedObserver

    def _attach(
        self, make: Callable[..., AnyObserver], client: Service, run: str, **options: Any
    ) -> None:
        if self.loss is not None:
            self._check(self.loss)
        self.run = run
        self._attached = AttachedObserver(
            partial(make, connection_of(client), run, **options), self.hint
        )

    def _check(self, loss: Loss) -> None:
        """Raise ValueError if the framework cannot train with the loss."""


class SteeringCallback(CallbackBase):
    """Callback that adapts a loss during training; ``loss`` is available before training begins."""

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
            raise ValueError("pass either loss, or settings and ignore_index, but not both")
        else:
            steered = loss
        if not isinstance(steered, AdaFocalLoss):
            raise ValueError(
                f"loss must be adafocal or calfocal, which adapt to calibration, "
                f"got {_name_of(steered)}"
            )
        self.loss = steered
        options = {"budget": budget, "fresh": fresh, "folder": folder}
        self._attach(AdaFocal, client, run, loss=steered, **options)


class MonitoringCallback(CallbackBase):
    """Callback that monitors training with any loss.

    ``loss`` is a loss created by ``make_loss``, or the name of one with its parameters; the loss is
    notified at the end of each epoch. With ``diagnose``, ``agreement`` holds the diagnostics of the
    last pass.
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
        diagnose: bool = False,
        **params: Any,
    ) -> None:
        super().__init__()
        if isinstance(loss, str):
            loss = make_loss(loss, ignore_index=ignore_index, **params)
        elif params:
            raise ValueError(f"{', '.join(params)} can only be combined with the name of a loss")
        if loss is not None:
            ignore_index = _checked_loss(loss).ignore_index
        self.loss = loss
        self.ignore_index = ignore_index
        options = {"budget": budget, "fresh": fresh, "folder": folder, "diagnose": diagnose}
        self._attach(Monitor, client, run, ignore_index=ignore_index, **options)

    @property
    def agreement(self) -> ClassAgreement | None:
        """The diagnostics of the last pass; None without ``diagnose``."""
        monitor = self._attached.observing
        return monitor.agreement if isinstance(monitor, Monitor) else None


def _checked_loss(loss: Loss) -> Loss:
    """Return the loss unchanged; raise ValueError if a monitor cannot use it."""
    if not isinstance(loss, Loss):
        raise ValueError(
            f"loss must be a name or a loss created by make_loss, got {_name_of(loss)}"
        )
    inner = getattr(loss, "calibration", loss)  # of RefCal
    if isinstance(inner, AdaFocalLoss):
        raise ValueError(
            f"a monitor cannot update {inner.name}: use AdaFocalCallback(loss={inner.name!r})"
        )
    return loss


def _name_of(loss: Any) -> str:
    return str(getattr(loss, "name", None) or type(loss).__name__)


def callback_class(
    module: str, name: str, made: dict[str, type], bases: Callable[[], tuple[type, ...]]
) -> type:
    """Create a callback class on first use, because its bases import the framework."""
    if name not in made:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    about = {"__module__": module, "__doc__": made[name].__doc__}
    return type(name, (made[name], *bases()), about)
