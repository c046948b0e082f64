"""Submit, find and cancel fits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from calibrators import Calibrator
from calibrators.fitting.evaluation import memory_bytes
from calibrators.registry import make_recipe
from service.access import idempotency
from service.access.permissions import Principal
from service.concurrency.long_poll import Watcher
from service.datasets.formats import Format
from service.datasets.service import Retention, find_ready
from service.errors import Conflict, Invalid, NotFound, TooLarge, TooMany
from service.names import check_name
from service.registry.service import calibrator_for, check_model, check_notes
from service.storage.database import Database
from service.storage.records import Dataset, Fit
from service.storage.store import Store

QUEUES = CPU, GPU = "fit.cpu", "fit.gpu"
MAX_METHODS = 20
LONGEST_SPEC = 16_384
NUMBER_LENGTH = 8
WORKER_IS_ALIVE = 6.0
GIGABYTE = 1 << 30
TEXT_COPIES = 8  # parsed numbers are Python objects, larger than their text

Device = Literal["auto", "cpu", "gpu"]


@dataclass(frozen=True)
class MethodSpec:
    """The name and parameters of a method to fit."""

    method: str
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FitSpec:
    """The specification of a fit, without its data."""

    methods: Sequence[MethodSpec]
    seed: int = 0
    held_out: float | None = None
    model: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    description: str = ""

    @cached_property
    def recipes(self) -> list[Calibrator]:
        """The recipes of the methods, cached because building many of them takes a while."""
        return [make_recipe(one.method, one.params, seed=self.seed) for one in self.methods]

    def check(self) -> None:
        """Raise the error that a worker would raise for this specification, if any."""
        if not 1 <= len(self.methods) <= MAX_METHODS:
            raise Invalid(
                "bad_methods",
                f"a fit must have 1 to {MAX_METHODS} methods, got {len(self.methods)}",
            )
        self._check_size()
        _ = self.recipes
        check_model(self.model)
        check_notes(self.tags, self.description)

    def _check_size(self) -> None:
        """Raise TooLarge if the methods are too long to be stored and returned in responses."""
        length = sum(len(one.method) + _length(one.params) for one in self.methods)
        if length > LONGEST_SPEC:
            raise TooLarge(
                "fit_too_large",
                f"the methods of a fit and their parameters may take at most {LONGEST_SPEC} "
                f"characters, got about {length}",
                limit=LONGEST_SPEC,
            )


@dataclass(frozen=True)
class FitRequest:
    """A fit as requested by the caller.

    ``dataset`` and ``evaluation`` are ids as given, or the SHA-256 of bytes sent with the request;
    ``kind`` and ``keeping`` define how such bytes are read and stored. An idempotency key is tied
    to a digest of all fields and their names.
    """

    calibrator: str
    order: FitSpec
    dataset: str
    evaluation: str | None = None
    device: Device = "auto"
    kind: str | None = None
    keeping: Retention | None = None

    def check(self) -> None:
        """Raise if the request is invalid regardless of the dataset."""
        check_name(self.calibrator, "a calibrator")
        self.order.check()
        if self.evaluation is not None and self.order.held_out is not None:
            raise Invalid("two_judges", "send held_out or an evaluation dataset, not both")


def replayed(
    store: Store, principal: Principal, request: FitRequest, key: str | None
) -> Fit | None:
    """Return the fit of an earlier identical request with this key, or None."""
    known = idempotency.answered(store, principal, key, asdict(request))
    return None if known is None else find(store, principal, known["fit"])


def submit(
    store: Store,
    principal: Principal,
    request: FitRequest,
    *,
    dataset: str,
    key: str | None = None,
    memory_limit: int | None = None,
    most_open: int | None = None,
) -> Fit:
    """Submit a fit on a dataset.

    ``memory_limit`` limits the estimated memory of the fit in bytes, and ``most_open`` the number
    of waiting and running fits in the workspace; None means no limit.
    """
    _check_open(store, principal, most_open)
    data = find_ready(store, principal, dataset)
    other = None
    if request.evaluation is not None:
        other = find_ready(store, principal, request.evaluation)
        _check_alike(data, other)
    _check_segments(request.order, data, other)
    _check_features(request.order, data, other)
    for recipe in request.order.recipes:
        check_memory(recipe, data, other, request.order.held_out, memory_limit)
    name = request.calibrator
    fit = store.fits.add(
        principal.workspace,
        calibrator=calibrator_for(store, principal, name).id,
        calibrator_name=name,
        order=asdict(request.order),
        dataset=data.id,
        evaluation=None if other is None else other.id,
        queue=_queue_for(store, request.device),
        created_by=principal.actor,
    )
    idempotency.keep(store, principal, key, asdict(request), {"fit": fit.id})
    return fit


def find(store: Store, principal: Principal, id: str) -> Fit:
    """Return a fit in the caller's workspace."""
    found = store.fits.get(id, principal.workspace)
    if found is None:
        raise NotFound("no_such_fit", "there is no such fit")
    return found


def cancel(store: Store, principal: Principal, id: str) -> Fit:
    """Cancel a fit: immediately if it is waiting, within seconds if running; safe to repeat."""
    found = find(store, principal, id)
    changed = store.fits.cancel(id)
    if changed is None and not found.cancel_requested:
        raise Conflict("fit_is_final", f"this fit has already ended: its status is {found.status}")
    return changed or found


def _check_open(store: Store, principal: Principal, most: int | None) -> None:
    """Raise TooMany if a workspace has ``most`` or more waiting and running fits."""
    if most is None:
        return
    store.keys.lock_workspace(
        principal.workspace
    )  # otherwise concurrent calls could exceed the limit
    count = store.fits.count_open(principal.workspace)
    if count >= most:
        raise TooMany(
            "too_many_fits",
            f"this workspace has {count} waiting or running fits, and the limit is {most}: "
            "wait for some to finish, or cancel some",
            limit=most,
        )


def _length(value: Any) -> int:
    """Estimate the length of a value as JSON, without serialising it."""
    match value:
        case str():
            return len(value) + 2
        case dict():
            return 2 + sum(_length(name) + _length(one) + 4 for name, one in value.items())
        case list() | tuple():
            return 2 + sum(_length(one) + 2 for one in value)
    return NUMBER_LENGTH


def _check_alike(data: Dataset, evaluation: Dataset) -> None:
    if data.sha256 == evaluation.sha256:
        raise Invalid(
            "evaluation_is_the_dataset",
            "the evaluation dataset must differ from the dataset: "
            "omit evaluation to hold out a part of the dataset",
        )
    if (data.kind, data.classes) != (evaluation.kind, evaluation.classes):
        raise Invalid(
            "evaluation_differs",
            f"the evaluation dataset must contain {data.kind} for {data.classes} classes, like the "
            f"dataset, got {evaluation.kind} for {evaluation.classes}",
        )
    if None not in (data.features, evaluation.features) and data.features != evaluation.features:
        raise Invalid(
            "evaluation_differs",
            f"the evaluation dataset must have {data.features} features per row, like the "
            f"dataset, got {evaluation.features}",
        )


def check_memory(
    recipe: Calibrator,
    data: Dataset,
    evaluation: Dataset | None,
    held_out: float | None,
    limit: int | None,
) -> None:
    """Raise TooLarge if the estimated memory of a fit exceeds ``limit`` bytes.

    The estimate is based on the metadata of the datasets, which are not loaded.
    """
    needed = fit_bytes(recipe, data, evaluation, held_out)
    if limit is None or needed <= limit:
        return
    judged = "" if evaluation is None else f" and {evaluation.rows or 0:,} evaluation rows"
    raise TooLarge(
        "too_much_memory",
        f"the method {recipe.name!r} needs about {needed / GIGABYTE:.2g} GiB of memory for "
        f"{data.rows or 0:,} rows of {data.classes or 0:,} classes{judged}, but a fit may use at "
        f"most {limit / GIGABYTE:.2g} GiB: send fewer rows, or choose another method",
        needed=needed,
        limit=limit,
    )


def fit_bytes(
    recipe: Calibrator, data: Dataset, evaluation: Dataset | None, held_out: float | None
) -> int:
    """Estimate the peak memory of a fit in bytes, including its datasets."""
    judged = None if evaluation is None else evaluation.rows or 0
    needed = memory_bytes(
        recipe,
        data.rows or 0,
        data.classes or 0,
        features=data.features or 0,
        feature_size=_feature_size(data, evaluation),
        evaluation=judged,
        held_out=held_out,
    )
    return needed + _reading_bytes(data) + (_reading_bytes(evaluation) if evaluation else 0)


def _feature_size(*datasets: Dataset | None) -> int:
    """Return the largest size of a feature value in any of the datasets, in bytes."""
    found = [one for one in datasets if one is not None and one.features and one.rows]
    return max(
        ((one.feature_bytes or 0) // ((one.rows or 1) * (one.features or 1)) for one in found),
        default=0,
    )


def _reading_bytes(dataset: Dataset) -> int:
    """Estimate the memory in bytes that a loaded dataset takes beyond its logits and labels."""
    rows, classes = dataset.rows or 0, dataset.classes or 0
    found = 0
    if dataset.kind == "probabilities":  # kept alongside their logarithms
        found += 8 * rows * classes
    if dataset.segments is not None:
        found += 2 * 8 * rows
    if dataset.format is not None and Format(dataset.format).codec.is_text:
        found += TEXT_COPIES * (dataset.bytes or 0)
    return found


def _check_features(spec: FitSpec, data: Dataset, evaluation: Dataset | None) -> None:
    """Raise Invalid if a method needs features or a head that a dataset lacks."""
    for recipe in spec.recipes:
        method = recipe.method_needing_features
        for name, dataset in (("dataset", data), ("evaluation dataset", evaluation)):
            if method is not None and dataset is not None and dataset.features is None:
                raise Invalid(
                    "missing_features",
                    f"the method {method!r} needs features, but the {name} has none: "
                    "send it with features",
                )
        if recipe.method_needing_head is not None and not data.has_head:
            raise Invalid(
                "missing_head",
                f"the method {recipe.method_needing_head!r} needs the classification head, but the "
                "dataset has none: send it with head_weight and head_bias",
            )


def _check_segments(spec: FitSpec, data: Dataset, evaluation: Dataset | None) -> None:
    """Raise Invalid if a method needs segments that a dataset lacks."""
    for recipe in spec.recipes:
        method = recipe.method_needing_segments
        if method is None:
            continue
        for name, dataset in (("dataset", data), ("evaluation dataset", evaluation)):
            if dataset is not None and dataset.segments is None:
                raise Invalid(
                    "missing_segments",
                    f"the method {method!r} needs segments, but the {name} has none: "
                    "send it with segments",
                )


def _queue_for(store: Store, device: Device) -> str:
    """Return the queue for a device; without GPU workers, "auto" means the CPU queue."""
    if device == "cpu":
        return CPU
    has_gpu = any(GPU in worker.queues for worker in store.workers.alive(WORKER_IS_ALIVE))
    if device == "gpu" and not has_gpu:
        raise Conflict("no_gpu", "no worker with a GPU is running: set device to auto or cpu")
    return GPU if has_gpu else CPU


class FitWatcher(Watcher[str, Fit]):
    """Watcher for changes of fits."""

    def __init__(self, database: Database) -> None:
        def read(ids: list[str]) -> dict[str, Fit]:
            with database.read() as store:
                return {fit.id: fit for fit in store.fits.several(ids)}

        super().__init__("fits", read)

    def changes_of(self, fit: Fit) -> AsyncGenerator[Fit]:
        """Yield the fit now and after every change, until it is final or ``stop`` is called."""
        return self.changes(fit.id, fit, _is_final)

    async def finished(self, fit: Fit, seconds: float) -> Fit:
        """Return the fit once it is final, ``seconds`` have passed or ``stop`` is called."""
        return await self.until(fit.id, fit, _is_final, seconds)


def _is_final(fit: Fit) -> bool:
    return fit.status.is_final
