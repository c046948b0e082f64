"""Request and response bodies for training runs."""

from __future__ import annotations

from dataclasses import asdict, fields
from datetime import datetime
from typing import Annotated, Any, Literal, Self, get_type_hints

from pydantic import Field, create_model

from calibrators.adafocal import AdaFocalState, Settings
from service.http.schemas import (
    AFTER,
    TAGS,
    Actor,
    Body,
    RequestBody,
    TagMap,
    When,
    when,
)
from service.runs.history_repository import Shown
from service.runs.repository import LONGEST_MERGE, Head
from service.runs.sessions import Opened
from service.storage import records

SESSION_PATTERN = "^[A-Za-z0-9._-]{1,100}$"
MAX_STEPS = 2**31 - 1
MAX_RANKS = 4096
LONGEST_STATISTICS = 1_000_000
RUN_NAME = "resnet-cifar10"
SESSION_ID = "job-1207"
EDGES = [0.0, 0.7855968947392908, 1.0]
GAMMAS = [0.5961849545952088, 1.415552602564902]
# statistics of four rows of three classes
STATISTICS = (
    "Q0JTMXicC2IAAUYoYmRA4ULBVgaGfgaGkwwZDCwTGQgDBQYGOQYGC4YABoYkIpQDrTnNwODOYMLAcIUI5ZIMDCoMDEYMVgwM"
    "LEQoH7SgMUJn+/GHT50LxeUVQCENAPtFDKg="
)

SessionId = Annotated[
    str,
    Field(pattern=SESSION_PATTERN, description="chosen by the caller", examples=[SESSION_ID]),
]
StepNumber = Annotated[int, Field(ge=0, lt=MAX_STEPS)]
Begun = Annotated[
    float,
    Field(ge=0, allow_inf_nan=False, description="start time as a Unix timestamp; default: now"),
]
Numbers = Annotated[list[float], Field(max_length=1001)]


def _fields_of(kind: type[Any]) -> dict[str, Any]:
    """Return the fields of a dataclass for use in a body, with their bounds and defaults."""
    hints = get_type_hints(kind, include_extras=True)
    return {one.name: (hints[one.name], one.default) for one in fields(kind)}


_SettingsFields = create_model("_SettingsFields", __base__=RequestBody, **_fields_of(Settings))


class SettingsBody(_SettingsFields):  # type: ignore[misc, valid-type]
    """Settings for updating the gamma of each bin from its gap between confidence and accuracy."""

    @classmethod
    def example(cls) -> dict[str, Any]:
        """Return the default settings with two bins."""
        return asdict(Settings(bins=2))

    def read(self) -> Settings:
        """Return the settings; raise if they contradict each other."""
        return Settings(**self.model_dump())


class StateBody(RequestBody):
    """The state of the loss after ``step`` updates: ``bins + 1`` edges and ``bins`` gammas."""

    settings: SettingsBody
    step: StepNumber = Field(examples=[1])
    edges: Numbers = Field(examples=[EDGES])
    gammas: Numbers = Field(examples=[GAMMAS])
    accuracy: Numbers = Field(examples=[[1.0, 0.5]])

    def read(self) -> AdaFocalState:
        """Return the state; raise if it is invalid."""
        return AdaFocalState.from_dict(self.model_dump())


STATE = StateBody.example()
BEGIN = {
    **STATE,
    "step": 0,
    "edges": [0.0, 0.5, 1.0],
    "gammas": [1.0, 1.0],
    "accuracy": [0.25, 0.75],
}


class OpenRunIn(RequestBody):
    """A run to start or continue, from its last step unless ``state`` or ``from_step`` is given.

    `decides` states who merges the ranks and updates the state: the trainer, which then sends its
    state, or the service, which waits at most `merge_timeout` seconds for all ranks. `begun` is the
    start time of a session that is reported later; the newest session is the one that began last.
    """

    name: Annotated[str, Field(max_length=64, examples=[RUN_NAME])]
    kind: records.RunKind = "adafocal"
    settings: SettingsBody | None = Field(default=None, examples=[SettingsBody.example()])
    world_size: Annotated[int, Field(ge=1, le=MAX_RANKS)] = 1
    decides: records.Decider = "trainer"
    merge_timeout: Annotated[float, Field(gt=0, le=LONGEST_MERGE)] = 60.0
    session: SessionId | None = Field(default=None, examples=[SESSION_ID])
    state: StateBody | None = None
    from_step: StepNumber | None = None
    tags: TagMap = Field(default_factory=dict)
    description: str = ""
    begun: Begun | None = None


class StatisticsIn(RequestBody):
    """Statistics of a validation pass; a trainer that decides steps itself also sends ``state``."""

    session: SessionId
    rank: Annotated[int, Field(ge=0, lt=MAX_RANKS)] = 0
    statistics: str = Field(
        max_length=LONGEST_STATISTICS,
        description="`BinStatistics.to_bytes()` in base64",
        examples=[STATISTICS],
    )
    state: StateBody | None = Field(default=None, examples=[STATE])


class RunNotesIn(RequestBody):
    """New tags, description or archived state; omitted fields stay unchanged."""

    tags: TagMap | None = Field(default=None, examples=[TAGS])
    description: str | None = None
    archived: bool | None = Field(default=None, examples=[True])


class RunMetricsOut(Body):
    """Metrics of a validation pass; null if the pass had no rows."""

    rows: int = Field(examples=[4])
    accuracy: float | None = Field(examples=[0.75])
    confidence: float | None = Field(examples=[0.665])
    ece: float | None = Field(examples=[0.54])
    ada_ece: float | None = Field(examples=[0.54])
    nll: float | None = Field(examples=[1.207])


def _filled(*values: float, empty: float | None = None) -> list[float | None]:
    """Return values for the 15 bins of an example, four of which contain one row each."""
    found = dict(zip((5, 8, 11, 13), values, strict=True))
    return [found.get(place, empty) for place in range(15)]


class BarsOut(Body):
    """Equal-width bins; null for empty bins."""

    count: list[float] = Field(examples=[_filled(1.0, 1.0, 1.0, 1.0, empty=0.0)])
    confidence: list[float | None] = Field(examples=[_filled(0.391, 0.575, 0.786, 0.909)])
    accuracy: list[float | None] = Field(examples=[_filled(1.0, 1.0, 1.0, 0.0)])


class RunBinsOut(BarsOut):
    """Equal-mass bins with their edges."""

    count: list[float] = Field(examples=[[2.0, 2.0]])
    confidence: list[float | None] = Field(examples=[[0.483, 0.848]])
    accuracy: list[float | None] = Field(examples=[[1.0, 0.5]])
    edges: list[float] = Field(examples=[EDGES])


class RunSessionOut(Body):
    """One start of a training job; its first step is the one after ``base_step``."""

    id: str = Field(examples=[SESSION_ID])
    number: int = Field(examples=[1])
    base_step: int = Field(examples=[0])
    world_size: int = Field(examples=[1])
    decides: records.Decider = Field(examples=["trainer"])
    merge_timeout: float = Field(examples=[60.0])
    begun_at: When
    created_by: Actor
    created_at: When

    @classmethod
    def of(cls, session: records.RunSession) -> RunSessionOut:
        """Return the response body of a session."""
        times = {name: when(getattr(session, name)) for name in ("begun_at", "created_at")}
        facts = asdict(session) | times
        return cls(**{name: facts[name] for name in cls.model_fields})


class RunOut(Body):
    """A training run, with its current step and the metrics of its last decided step."""

    name: str = Field(examples=[RUN_NAME])
    kind: records.RunKind = Field(examples=["adafocal"])
    settings: SettingsBody | None
    step: int = Field(examples=[1])
    metrics: RunMetricsOut | None
    tags: TagMap = Field(examples=[TAGS])
    description: str = Field(examples=["learning rate 0.1"])
    archived: bool
    created_by: Actor
    created_at: When
    updated_at: datetime | None = Field(examples=[AFTER])

    @classmethod
    def of(cls, run: records.Run, head: Head, last: records.RunStep | None, **more: Any) -> Self:
        """Return the response body of a run at position ``head`` with the decided step ``last``."""
        return cls(
            name=run.name,
            kind=run.kind,
            settings=None if run.settings is None else SettingsBody(**run.settings),
            step=head.step,
            metrics=None if last is None else RunMetricsOut(**last.metrics),
            tags=run.tags,
            description=run.description,
            archived=run.archived_at is not None,
            created_by=run.created_by,
            created_at=when(run.created_at),
            updated_at=when(run.updated_at),
            **more,
        )


class RunDetailOut(RunOut):
    """A run with its latest sessions, newest first."""

    sessions: list[RunSessionOut]


class OpenedRunOut(RunOut):
    """An opened session of a run: continue after ``step`` with ``state`` (null for a monitor)."""

    step: int = Field(examples=[0])
    metrics: RunMetricsOut | None = Field(examples=[None])
    session: RunSessionOut
    state: StateBody | None = Field(examples=[BEGIN])

    @classmethod
    def opened(cls, opened: Opened, last: records.RunStep | None) -> Self:
        """Return the response body of an opened session."""
        run, session, head, _ = opened
        shown = RunSessionOut.of(session)
        return cls.of(run, head, last, session=shown, state=_state(head.state))


class StepDecisionOut(Body):
    """The status of a step: decided (with the state after it), or waiting for other statistics."""

    step: int = Field(examples=[1])
    session: str = Field(examples=[SESSION_ID])
    status: Literal["decided", "waiting"] = Field(examples=["decided"])
    ranks: list[int] = Field(examples=[[0]])
    late: bool
    state: StateBody | None


class RunStateOut(Body):
    """The position of a session: its last decided step, or its base step."""

    run: str = Field(examples=[RUN_NAME])
    session: str = Field(examples=[SESSION_ID])
    step: int = Field(examples=[1])
    state: StateBody | None
    metrics: RunMetricsOut | None
    partial: bool
    verified: bool | None = Field(examples=[True])

    @classmethod
    def of(cls, name: str, session: records.RunSession, head: Head) -> RunStateOut:
        """Return the response body for the state of a session in the run ``name``."""
        decided = head.decided
        return cls(
            run=name,
            session=session.id,
            step=head.step,
            state=_state(head.state),
            metrics=None if decided is None else RunMetricsOut(**decided.metrics),
            partial=decided is not None and decided.partial,
            verified=None if decided is None else decided.verified,
        )


class RunStepOut(Body):
    """A decided step: its ranks, its metrics, and the gammas after it.

    ``bins`` has equal-mass bins and ``reliability`` equal-width bins. ``switched`` lists the
    bins whose gamma changed sign.
    """

    step: int = Field(examples=[1])
    session: str = Field(examples=[SESSION_ID])
    decided_at: datetime | None = Field(examples=[AFTER])
    ranks: list[int] = Field(examples=[[0]])
    world_size: int = Field(examples=[1])
    partial: bool
    verified: bool | None = Field(examples=[True])
    metrics: RunMetricsOut
    bins: RunBinsOut | None
    reliability: BarsOut | None
    gammas: list[float] | None = Field(examples=[GAMMAS])
    switched: list[int] = Field(examples=[[]])

    @classmethod
    def of(cls, shown: Shown) -> RunStepOut:
        """Return the response body of a step."""
        step, session = shown
        return cls(
            step=step.step,
            session=session.id,
            decided_at=when(step.decided_at),
            ranks=step.ranks,
            world_size=session.world_size,
            partial=step.partial,
            verified=step.verified,
            metrics=RunMetricsOut(**step.metrics),
            bins=None if step.bins is None else RunBinsOut(**step.bins),
            reliability=None if step.reliability is None else BarsOut(**step.reliability),
            gammas=None if step.state is None else step.state["gammas"],
            switched=step.switched,
        )


def _state(document: dict[str, Any] | None) -> StateBody | None:
    return None if document is None else StateBody(**document)


def decision_of(
    step: int, session: str, ranks: list[int], late: bool, decided: records.RunStep | None
) -> StepDecisionOut:
    """Return the response body for posted statistics."""
    return StepDecisionOut(
        step=step,
        session=session,
        status="waiting" if decided is None else "decided",
        ranks=ranks,
        late=late,
        state=None if decided is None else _state(decided.state),
    )
