"""Rows of the tables as frozen records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple

Kind = Literal["logits", "probabilities"]
PRODUCTION = "production"  # the default alias
RunKind = Literal["adafocal", "monitor"]
Decider = Literal["trainer", "service"]


class FitStatus(StrEnum):
    """The status of a fit."""

    QUEUED = "queued"  # waiting for a worker, possibly after another worker was lost
    RUNNING = "running"  # a worker is running it
    SUCCEEDED = "succeeded"  # its versions have been written
    FAILED = "failed"  # `error` contains a code and a message
    CANCELLED = "cancelled"  # by request; nothing was written

    @property
    def is_final(self) -> bool:
        """True if the status can no longer change."""
        return self not in (FitStatus.QUEUED, FitStatus.RUNNING)


OPEN = tuple(status for status in FitStatus if not status.is_final)


@dataclass(frozen=True)
class Workspace:
    """A caller's isolated space; every other object belongs to one."""

    id: str
    name: str
    created_at: float


@dataclass(frozen=True)
class Key:
    """An API key; only the SHA-256 of its secret is stored."""

    id: str
    workspace: str
    name: str
    secret_sha256: str
    scopes: list[str]
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    last_used_at: float | None


@dataclass(frozen=True)
class Dataset:
    """Logits or probabilities with labels; ``sha256`` is None while parts are being uploaded.

    ``segments`` is the number of segments, and ``features`` the number of features per row; each is
    None if there are none. ``feature_bytes`` is the size of all features in memory. ``has_head`` is
    true if the classification head is stored with them. ``part_bytes`` is the total size of the
    recorded parts.
    """

    id: str
    workspace: str
    kind: Kind | None
    sha256: str | None
    format: str | None
    bytes: int | None
    rows: int | None
    classes: int | None
    segments: int | None
    delete_after_fit: bool
    expires_at: float | None
    created_at: float
    part_bytes: int = 0
    features: int | None = None
    feature_bytes: int | None = None
    has_head: bool | None = None

    @property
    def is_ready(self) -> bool:
        """True if the upload is complete and has been checked."""
        return self.sha256 is not None


@dataclass(frozen=True)
class Part:
    """A part of an upload."""

    dataset: str
    number: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class CalibratorRow:
    """A named series of versions."""

    id: str
    workspace: str
    name: str
    last_version: int
    stored_bytes: int
    created_at: float


@dataclass(frozen=True)
class Version:
    """A fitted map and its origin; only tags and description may change."""

    calibrator: str
    number: int
    id: str | None
    method: str
    params: dict[str, Any]
    seed: int | None
    kind: Kind
    classes: int
    model: str | None
    dataset_sha256: str | None
    rows: int | None
    verdict: str | None
    verdict_sentence: str | None
    fit: str | None
    fit_info: dict[str, Any]
    libraries: dict[str, Any]
    map_sha256: str
    map_bytes: int
    onnx_sha256: str | None
    judged_sha256: str | None
    judged_data: str | None
    tags: dict[str, str]
    description: str
    created_by: str
    created_at: float


@dataclass(frozen=True)
class Alias:
    """A movable pointer to a version; ``revision`` counts its moves."""

    calibrator: str
    name: str
    version: int
    revision: int
    moved_at: float


@dataclass(frozen=True)
class AliasMove:
    """One move of an alias."""

    id: int
    calibrator: str
    alias: str
    revision: int
    from_version: int | None
    to_version: int
    moved_by: str
    moved_at: float
    reason: str
    forced: bool
    rollback: bool


@dataclass(frozen=True)
class Fit:
    """A fit. ``order`` is its specification; ``attempt`` counts starts and is a fencing token."""

    id: str
    workspace: str
    calibrator: str
    calibrator_name: str
    order: dict[str, Any]
    dataset: str
    evaluation: str | None
    queue: str
    status: FitStatus
    attempt: int
    cancel_requested: bool
    progress: dict[str, Any] | None
    device: str | None
    versions: list[int]
    recommendation: dict[str, Any] | None
    error: dict[str, str] | None
    error_code: str | None
    worker: str | None
    created_by: str
    created_at: float
    started_at: float | None
    finished_at: float | None
    lost_at: float | None


@dataclass(frozen=True)
class Worker:
    """A worker process, as of its last heartbeat."""

    id: str
    queues: list[str]
    device: str
    started_at: float
    seen_at: float


@dataclass(frozen=True)
class Run:
    """A named run; ``settings`` configures AdaFocal, and is None for a monitor."""

    id: str
    workspace: str
    name: str
    kind: RunKind
    settings: dict[str, Any] | None
    tags: dict[str, str]
    description: str
    archived_at: float | None
    stored_bytes: int
    created_by: str
    created_at: float
    updated_at: float


class SessionKey(NamedTuple):
    """The key of a session: the id of its run, and its number."""

    run: str
    number: int


@dataclass(frozen=True)
class RunSession:
    """One start of a training job; its first step is the one after ``base_step``.

    Sessions are numbered in the order in which the service learnt of them, which may be long after
    they began. The newest session is the one that began last. The state at ``base_step`` may be
    large, so it is read separately.
    """

    run: str
    number: int
    id: str
    base_step: int
    world_size: int
    decides: Decider
    merge_timeout: float
    begun_at: float
    created_by: str
    created_at: float

    @property
    def key(self) -> SessionKey:
        """The key of this session."""
        return SessionKey(self.run, self.number)


@dataclass(frozen=True)
class RunStatistics:
    """Metadata of one rank's statistics for a step; the bytes are only read for merging."""

    rank: int
    sha256: str
    late: bool


@dataclass(frozen=True)
class RunStep:
    """A decided step: the state after it, and the results computed from its statistics."""

    run: str
    session: int
    step: int
    state: dict[str, Any] | None
    ranks: list[int]
    partial: bool
    verified: bool | None
    metrics: dict[str, Any]
    bins: dict[str, Any] | None
    reliability: dict[str, Any] | None
    switched: list[int]
    decided_at: float
