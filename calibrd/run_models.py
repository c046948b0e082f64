"""What the service answers about training runs, as plain records."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from calibrators.adafocal import AdaFocalState, Settings
from calibrd.transport.names import Id, Name


@dataclass(frozen=True)
class RunMetrics:
    """What a validation pass says of the model; None where nothing was observed."""

    rows: int
    accuracy: float | None
    confidence: float | None
    ece: float | None
    ada_ece: float | None
    nll: float | None


@dataclass(frozen=True)
class Session:
    """One life of a training job: its steps follow ``base_step``."""

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
    """A training run; ``sessions`` are only there if it was asked for by its name."""

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
    """A session to send statistics to: it goes on after ``step``, with ``state``.

    ``state`` is None of a monitor.
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
    """How a step stands: ``state`` is that after it, if it is decided and not of a monitor."""

    step: int
    session: Id
    status: str
    ranks: list[int]
    late: bool
    state: AdaFocalState | None

    @property
    def is_decided(self) -> bool:
        """Whether all ranks have the same state now."""
        return self.status == "decided"


@dataclass(frozen=True)
class RunState:
    """Where a session is: its last decided step, or the step it began from."""

    run: Name
    session: Id
    step: int
    state: AdaFocalState | None
    metrics: RunMetrics | None
    partial: bool
    verified: bool | None


@dataclass(frozen=True)
class Bars:
    """Bins of equal width; None where one is empty."""

    count: list[float]
    confidence: list[float | None]
    accuracy: list[float | None]


@dataclass(frozen=True)
class RunBins(Bars):
    """Bins of equal mass, and where they begin and end."""

    edges: list[float]


@dataclass(frozen=True)
class RunStep:
    """A decided step: who was there, what was measured, and the gammas after it.

    ``switched`` are the bins whose gamma changed its sign; ``verified`` says whether the service
    came to the same state as the trainer, None where it did not have to.
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
