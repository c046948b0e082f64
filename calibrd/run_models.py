"""Dataclasses for the service's responses about training runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from calibrators.adafocal import AdaFocalState, Settings
from calibrd.transport.names import Id, Name


@dataclass(frozen=True)
class RunMetrics:
    """The metrics of a validation pass; None if nothing was observed."""

    rows: int
    accuracy: float | None
    confidence: float | None
    ece: float | None
    ada_ece: float | None
    nll: float | None


@dataclass(frozen=True)
class Session:
    """One start of a training job; its first step follows ``base_step``."""

    id: Id
    number: int
    base_step: int
    world_size: int
    decides: str
    merge_timeout: float
    begun_at: datetime | None
    created_by: str
    created_at: datetime | None


@dataclass(frozen=True)
class Run:
    """A training run; ``sessions`` is None in lists."""

    name: Name
    kind: str
    settings: Settings | None
    step: int
    metrics: RunMetrics | None
    tags: dict[str, str]
    description: str
    archived: bool
    created_by: str
    created_at: datetime | None
    updated_at: datetime | None
    sessions: list[Session] | None = None


@dataclass(frozen=True)
class RunSession:
    """An open session; training continues after ``step`` with ``state``.

    ``state`` is None for a monitor.
    """

    run: Name
    kind: str
    settings: Settings | None
    id: Id
    number: int
    base_step: int
    world_size: int
    decides: str
    merge_timeout: float
    begun_at: datetime | None
    step: int
    state: AdaFocalState | None


@dataclass(frozen=True)
class StepDecision:
    """The status of a step and, once decided, the ``state`` after it (None for a monitor)."""

    step: int
    session: Id
    status: str
    ranks: list[int]
    late: bool
    state: AdaFocalState | None

    @property
    def is_decided(self) -> bool:
        """True if the state after the step is final."""
        return self.status == "decided"


@dataclass(frozen=True)
class RunState:
    """The position of a session: its last decided step, or the step it began from."""

    run: Name
    session: Id
    step: int
    state: AdaFocalState | None
    metrics: RunMetrics | None
    partial: bool
    verified: bool | None


@dataclass(frozen=True)
class Bars:
    """Equal-width bins; the means of empty bins are None."""

    count: list[float]
    confidence: list[float | None]
    accuracy: list[float | None]


@dataclass(frozen=True)
class RunBins(Bars):
    """Equal-mass bins with their edges."""

    edges: list[float]


@dataclass(frozen=True)
class RunStep:
    """A decided step: its ranks, its metrics, and the gammas after it.

    ``switched`` lists the bins whose gamma changed sign. ``verified`` is True if the service
    computed the same state as the trainer, and None if there was nothing to verify.
    """

    step: int
    session: Id
    decided_at: datetime | None
    ranks: list[int]
    world_size: int
    partial: bool
    verified: bool | None
    metrics: RunMetrics
    bins: RunBins | None
    reliability: Bars | None
    gammas: list[float] | None
    switched: list[int]
