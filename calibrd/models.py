"""Dataclasses for the responses of the service.

Fields that a newer service adds are ignored; times are in UTC.
"""

from __future__ import annotations

import dataclasses
import functools
import reprlib
import types
import typing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from calibrators import Report
from calibrators.fitting.fallback import fallback_sentence
from calibrators.report import notebook
from calibrators.report.verdict import Verdict
from calibrd.transport.names import RULES, Id, Name, Sha256

Record = TypeVar("Record")
PLAIN: dict[Any, Any] = {int: int, float: int | float, str: str, bool: bool, dict: dict}
LARGEST = 1 << 63
FINAL = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class Dataset:
    """Stored logits or probabilities with labels.

    ``segments`` is the number of segments, and ``features`` the number of features per row.
    ``has_head`` is True if the classification head is stored too.
    """

    id: Id
    status: str
    kind: str | None
    sha256: Sha256 | None
    bytes: int | None
    rows: int | None
    classes: int | None
    delete_after_fit: bool
    expires_at: datetime | None
    created_at: datetime | None
    segments: int | None = None
    features: int | None = None
    has_head: bool = False


@dataclass(frozen=True)
class Recommendation:
    """The recommended version of a fit (None if there is none) and the reason."""

    version: int | None
    reason: str


@dataclass(frozen=True)
class Fit:
    """A fit, which is queued, running, succeeded, failed or cancelled.

    A successful fit of several methods has a ``recommendation``.
    """

    id: Id
    calibrator: Name
    status: str
    methods: list[dict[str, Any]]
    dataset: str
    evaluation: str | None
    seed: int
    held_out: float | None
    model: str | None
    progress: dict[str, Any] | None
    device: str | None
    attempt: int
    cancel_requested: bool
    versions: list[int]
    error: dict[str, Any] | None
    created_by: str
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    recommendation: Recommendation | None = None

    @property
    def is_finished(self) -> bool:
        """True if the fit has succeeded, failed or been cancelled."""
        return self.status in FINAL


@dataclass(frozen=True)
class Alias:
    """The version that an alias points at; ``revision`` counts its moves."""

    name: Name
    version: int
    revision: int
    moved_at: datetime | None
    warning: str | None = None


@dataclass(frozen=True)
class Move:
    """A move of an alias: who moved it, when, from and to which version, and why."""

    revision: int
    from_version: int | None
    to_version: int
    moved_by: str
    moved_at: datetime | None
    reason: str
    forced: bool
    rollback: bool


@dataclass(frozen=True)
class Calibrator:
    """A named series of versions, with its aliases."""

    name: Name
    latest: int | None
    aliases: list[Alias]
    created_at: datetime | None


@dataclass(frozen=True, repr=False)
class Version:
    """A fitted map on the service, with its origin and its report.

    ``report`` is None if the version was registered without one, or was returned in a list;
    ``client.report`` returns the report of a version from a list.
    """

    calibrator: Name
    number: int
    method: str
    params: dict[str, Any]
    seed: int | None
    kind: str
    classes: int
    model: str | None
    dataset_sha256: str | None
    rows: int | None
    verdict: Verdict | None
    fit: str | None
    fit_info: dict[str, Any]
    libraries: dict[str, Any]
    map_sha256: Sha256
    map_bytes: int
    has_onnx: bool
    tags: dict[str, str]
    description: str
    created_by: str
    created_at: datetime | None
    has_judged_rows: bool = False
    verdict_sentence: str | None = None
    report: Report | None = None

    def __repr__(self) -> str:
        verdict = None if self.verdict is None else str(self.verdict)
        return f"Version({self.reference!r}, method={self.method!r}, {verdict=})"

    @property
    def reference(self) -> str:
        """The reference ``name@number``, as accepted by ``load`` and ``predict``."""
        return f"{self.calibrator}@{self.number}"

    def summary(self) -> str:
        """Return the version's facts and its report as text for terminals."""
        width = max(map(len, self._facts))
        lines = [f"{name.ljust(width)}  {fact}" for name, fact in self._facts.items()]
        parts = [self.reference, "\n".join(lines)]
        return "\n\n".join(parts if self.report is None else [*parts, self.report.summary()])

    def _repr_html_(self) -> str:
        return notebook.fragment(self.reference, self._facts, self.report)

    @property
    def _judged(self) -> str:
        """The verdict and its explanation."""
        return ": ".join(str(one) for one in (self.verdict, self.verdict_sentence) if one)

    @property
    def _facts(self) -> dict[str, str]:
        """The known facts, as text."""
        rows = "" if self.rows is None else f" of {self.rows:,} rows"
        seed = "" if self.seed is None else f", seed {self.seed}"
        when = "" if self.created_at is None else f"{self.created_at:%Y-%m-%d %H:%M} UTC "
        known = {
            "method": f"{self.method}{seed}",
            "fitted on": f"{self.kind}{rows}, {self.classes:,} classes",
            "model": self.model or "",
            "verdict": "" if self.report else self._judged,
            "fallback": fallback_sentence(self.fit_info),
            "created": f"{when}by {self.created_by}",
            "tags": ", ".join(f"{name}={value}" for name, value in self.tags.items()),
            "description": self.description,
        }
        return {name: fact for name, fact in known.items() if fact}


@dataclass(frozen=True, repr=False)
class Comparison:
    """A comparison of two versions on the same rows; ``first`` is the report's ``before``.

    ``dataset`` is None for rows that both versions were judged on. If there is no verdict,
    ``no_verdict`` gives the reason, for example that a version was fitted on these rows.
    """

    calibrator: Name
    first: int
    second: int
    dataset: str | None
    rows: int
    verdict: Verdict | None
    no_verdict: str | None
    report: Report

    def __repr__(self) -> str:
        first, second, rows = self.first, self.second, self.rows
        verdict = None if self.verdict is None else str(self.verdict)
        return f"Comparison({self.calibrator!r}, {first=}, {second=}, {rows=}, {verdict=})"

    def summary(self) -> str:
        """Return the comparison as text for terminals; "before" is the first version."""
        head = f"before: version {self.first}, after: version {self.second} of {self.calibrator}"
        why = [] if self.no_verdict is None else [f"no verdict: {self.no_verdict}"]
        return "\n".join([head, self.report.summary(), *why])

    def _repr_html_(self) -> str:
        facts = {"before": f"version {self.first}", "after": f"version {self.second}"}
        if self.no_verdict is not None:
            facts["no verdict"] = self.no_verdict
        return notebook.fragment(self.calibrator, facts, self.report)


@dataclass(frozen=True)
class Method:
    """A method that the service can fit, with a JSON schema of its parameters.

    ``needs_segments``, ``needs_features`` and ``needs_head`` are True if the method requires
    segments, features or the classification head.
    """

    name: str
    summary: str
    reference: str
    cost: str
    keeps_class: bool | None
    needs_segments: bool
    parameters: dict[str, Any]
    needs_features: bool = False
    needs_head: bool = False


@dataclass(frozen=True)
class Key:
    """An API key, without its secret."""

    id: Id
    name: str
    scopes: list[str]
    created_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True)
class NewKey:
    """A new key; its ``token`` is shown only once."""

    key: Key
    token: str = field(repr=False)


@dataclass(frozen=True)
class Part:
    """An uploaded part of a dataset."""

    number: int
    bytes: int
    sha256: Sha256


@dataclass(frozen=True)
class Readiness:
    """The state of each component: ``ok`` or a problem. Truthy if all components are ok."""

    status: str
    database: str
    blobs: str
    workers: str

    def __bool__(self) -> bool:
        return self.status == "ok"


def read(kind: type[Record], document: dict[str, Any], **more: Any) -> Record:
    """Build a record from the service's JSON.

    >>> read(Alias, {"name": "production", "version": 2, "revision": 1, "moved_at": None}).version
    2
    """
    hints = _hints(typing.cast(Any, kind))
    known = {name: value for name, value in document.items() if name in hints}
    return kind(**{name: _value(hints[name], value) for name, value in known.items()}, **more)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(hint: Any, value: Any) -> Any:
    """Convert a value to its annotated type; raise TypeError or ValueError if that fails."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = typing.get_args(hint) if is_union else (hint,)
    if value is None:
        if types.NoneType not in options and hint is not Any:
            raise TypeError("a value is missing")
        return None
    return _read_as(options[0], value)


def _read_as(kind: Any, value: Any) -> Any:
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in RULES:
        _check(isinstance(value, str) and RULES[origin].fullmatch(value), "a name", value)
    elif origin is datetime:
        found = datetime.fromisoformat(value)
        _check(found.tzinfo is not None, "a time with a time zone", value)
        return found
    elif origin is Verdict:
        return next((one for one in Verdict if one == value), value)
    elif dataclasses.is_dataclass(origin) and isinstance(value, dict):
        return read(typing.cast(type[Any], origin), value)
    elif origin is list:
        _check(isinstance(value, list), "a list", value)
        return [_value(inner[0], one) for one in value]
    elif origin in PLAIN:
        is_number = origin in (int, float) and not isinstance(value, bool)
        _check(isinstance(value, PLAIN[origin]), origin.__name__, value)
        if origin in (int, float):
            _check(is_number and abs(value) < LARGEST, "a number in range", value)
    return value


def _check(holds: object, kind: str, value: Any) -> None:
    if not holds:
        raise TypeError(f"expected {kind}, got {reprlib.repr(value)}")
