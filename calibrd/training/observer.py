"""Base classes of AdaFocal and Monitor, which observe validation passes and report them as a run.

Each row of a pass is reduced, on its device, to three numbers, which are counted in bins.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np

from calibrators.adafocal import AdaFocalState, BinStatistics, RowTerms, Summary, row_terms
from calibrators.arrays import check_labelled, check_rows
from calibrators.errors import DataError
from calibrd.api.runs import checked_run
from calibrd.io.arrays import Array, as_array
from calibrd.training.reporting.reporter import Reporter, Service, connection_of
from calibrd.training.reporting.sessions import (
    Kind,
    SessionPlan,
    Start,
    checked_session,
    state_of,
)

if TYPE_CHECKING:
    from torch import Tensor

BUDGET_SECONDS = 2.0
MAX_SECONDS = 86_400.0
IGNORED = -100
AT_ONCE = 1 << 16
NO_ROWS = RowTerms(np.empty(0), np.empty(0, dtype=bool), np.empty(0))

T = TypeVar("T")
_log = logging.getLogger("calibrd")


class Ranks:
    """The rank of this process; other ranks, if any, communicate only through the service.

    In subclasses the ranks communicate directly; all of them must call the methods together.
    """

    def __init__(self, rank: int = 0, size: int = 1, *, decides: str | None = None) -> None:
        self.rank = rank
        self.size = size
        # the side that computes the state; the trainer if it has the statistics of all ranks
        self.decides = decides or ("trainer" if size == 1 else "service")
        self.reports = True  # whether this rank reports to the service

    def merged(self, statistics: BinStatistics) -> BinStatistics:
        """Return the sum of the statistics of all ranks that communicate."""
        return statistics

    def agreed(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document of rank 0 if the ranks communicate, else this rank's own."""
        return document

    def gathered(self, value: T) -> list[T]:
        """Return the values of all ranks that communicate, in rank order."""
        return [value]


class Steered(Protocol):
    """A loss with a state that each validation pass updates."""

    state: AdaFocalState


class Observer:
    """One training job of a run; copies in other processes cannot observe or step."""

    kind: Kind

    def __init__(
        self,
        client: Service,
        run: str,
        loss: Steered | None,
        first: Start,
        *,
        ignore_index: int,
        budget: float,
        rank: int | None,
        world_size: int | None,
        session: str | None,
        fresh: bool,
        folder: str | Path | None,
    ) -> None:
        if not isinstance(budget, int | float) or not 0 < budget <= MAX_SECONDS:
            raise ValueError(
                f"budget must be a number of seconds above 0 and at most {MAX_SECONDS:g}, "
                f"got {budget!r}"
            )
        self.run = checked_run(run)
        self.ignore_index = ignore_index
        self._process: int | None = os.getpid()
        self._observed = RunningStatistics()
        self._is_found = rank is None
        self._ranks = ranks_of(rank, world_size, checked_session(session))
        if client is None and self._ranks.decides == "service":
            raise ValueError(
                "client is required with rank= and world_size=: without a service, ranks can only "
                "agree on a state through torch.distributed"
            )
        self._reporter: Reporter | None = None
        self._is_closed = False
        ranks = self._ranks
        plan = SessionPlan(
            self.run,
            self.kind,
            None if first.state is None else first.state.settings,
            ranks.rank,
            ranks.size,
            ranks.decides,
            session or "",
            None,
        )
        options = {"budget": budget, "folder": folder}
        start = self._agreed_start(client, plan, first, fresh=fresh, **options)
        self._loss, self._steps = loss, start.step
        if loss is not None and start.state is not None:
            loss.state = start.state

    def observe(self, logits: Any, labels: Any) -> None:
        """Add a batch of the validation pass: logits (n, k) or (n, k, d1, ...) and labels.

        Tensors are reduced to counts on their device; nothing else is stored or sent.
        """
        self._check_is_here()
        self._observed.add(reduce_rows(logits, labels, self.ignore_index))

    def step(self) -> Summary:
        """End a validation pass and return its summary; if there is a loss, update its state.

        With torch.distributed, all ranks must call ``step``, and all get the same state and
        summary.
        """
        statistics = self._merged()
        if self._loss is None:
            self._record(statistics, Start(self._steps), None)
            self._steps += 1
        else:
            self._loss.state = self._updated(self._loss.state, statistics)
        return statistics.summary()

    def discard(self) -> None:
        """Discard the rows observed since the last step."""
        self._observed = RunningStatistics()

    def close(self) -> None:
        """Send as many steps as possible within the budget; the next process sends the rest.

        All ranks must call ``close``; calling ``step`` afterwards is an error on every rank.
        """
        self._is_closed = True
        if self._reporter is not None and self._process == os.getpid():
            self._reporter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy for another process, such as a DataLoader worker."""
        return {**vars(self), "_process": None, "_reporter": None, "_ranks": Ranks()}

    def _merged(self) -> BinStatistics:
        """Return the merged statistics of all ranks; raise on every rank if there are no rows."""
        self._check_is_here()
        if self._is_closed:
            raise RuntimeError(f"the {type(self).__name__} of {self.run!r} is closed")
        if self._is_found and type(self._ranks) is Ranks and is_distributed():
            raise RuntimeError(
                f"{type(self).__name__} was created before torch.distributed was initialised: "
                "create it after init_process_group"
            )
        merged = self._ranks.merged(self._observed.total())
        if not merged.rows:
            raise DataError("empty", "no rows were observed: call observe before step")
        self._observed = RunningStatistics()
        return merged

    def _updated(self, state: AdaFocalState, statistics: BinStatistics) -> AdaFocalState:
        """Report a pass and return the state after it."""
        before = Start(state.step, state)
        if self._ranks.decides == "service" and self._reporter is not None:
            return self._reporter.exchange(statistics, before)
        after = AdaFocalState.from_dict(self._ranks.agreed(state.update(statistics).to_dict()))
        self._record(statistics, before, after)
        return after

    def _record(
        self, statistics: BinStatistics, before: Start, after: AdaFocalState | None
    ) -> None:
        if self._reporter is not None:
            self._reporter.record(statistics, before, after)

    def _agreed_start(
        self,
        client: Service,
        plan: SessionPlan,
        first: Start,
        *,
        fresh: bool,
        **options: Any,
    ) -> Start:
        """Return the same starting position on all ranks; raise on all of them if rank 0 fails."""
        problem: Exception | None = None
        try:
            connection = connection_of(client) if self._ranks.reports else None
            if connection is not None:
                self._reporter = Reporter(connection, plan, **options)
                first = self._reporter.begin(first, fresh=fresh)
        except Exception as error:  # noqa: BLE001 - raised below, on all ranks
            problem = error
        state = first.state and first.state.to_dict()
        agreed = self._ranks.agreed(
            {"problem": problem and str(problem), "step": first.step, "state": state}
        )
        if problem is not None:
            raise problem
        if agreed["problem"] is not None:
            raise RuntimeError(f"rank 0 failed to start: {agreed['problem']}")
        return Start(agreed["step"], state_of(agreed["state"]))

    def _note_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        other = (checkpoint or {}).get("run", self.run)
        if other != self.run:
            _log.warning("%s: continuing from a checkpoint of a different run, %s", self.run, other)

    def _check_is_here(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError(
                f"this {type(self).__name__} is a copy or belongs to the parent process: use the "
                "original, in the process that created it"
            )


def checkpoint_entry(checkpoint: object, name: str) -> Any:
    """Return an entry of a checkpoint; raise ValueError if it is missing."""
    if not isinstance(checkpoint, dict) or name not in checkpoint:
        keys = list(checkpoint) if isinstance(checkpoint, dict) else type(checkpoint).__name__
        raise ValueError(f"a checkpoint must be a state_dict() with {name!r}, got {keys}")
    return checkpoint[name]


def is_distributed() -> bool:
    """Return whether torch.distributed is in use in this process."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and bool(dist.is_initialized())


def ranks_of(rank: int | None, world_size: int | None, session: str | None) -> Ranks:
    """Return the given rank, or this process's rank in torch.distributed, or a single rank."""
    if rank is None and world_size is None:
        if is_distributed():
            from calibrd.training.distributed import Distributed

            return Distributed()
        stated = os.environ.get("WORLD_SIZE", "1")
        if stated not in ("", "1"):
            raise RuntimeError(
                f"WORLD_SIZE is {stated}, but torch.distributed is not initialised yet: call "
                "init_process_group first, or pass rank=, world_size= and session="
            )
        return Ranks()
    if rank is None or world_size is None:
        raise ValueError("pass both rank= and world_size=, or neither")
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(
            f"rank must lie in 0..world_size-1, got rank={rank} and world_size={world_size}"
        )
    if world_size > 1 and session is None:
        raise ValueError(
            "session is required with rank= and world_size=: pass a name that all ranks share and "
            "that no earlier job of this run has used, such as the scheduler's job id"
        )
    return Ranks(rank, world_size)


class RunningStatistics:
    """Accumulator of row statistics, which counts rows in large batches for speed."""

    def __init__(self) -> None:
        self._counted = BinStatistics.empty()
        self._waiting: list[RowTerms] = []
        self._rows = 0

    def add(self, rows: RowTerms) -> None:
        """Add the rows of a batch."""
        self._waiting.append(rows)
        self._rows += len(rows.odds)
        if self._rows >= AT_ONCE:
            self.total()

    def total(self) -> BinStatistics:
        """Return the statistics of all rows so far."""
        if self._rows:
            columns = [np.concatenate(parts) for parts in zip(*self._waiting, strict=True)]
            self._counted += BinStatistics.from_log_odds(*columns)
        self._waiting, self._rows = [], 0
        return self._counted


def reduce_rows(logits: Any, labels: Any, ignore_index: int = IGNORED) -> RowTerms:
    """Reduce logits (n, k) or (n, k, d1, ...) and labels (n, d1, ...) to three numbers per row.

    Logits (n,) or (n, 1) are the logits of class 1. Rows labelled ``ignore_index`` are left out.
    Tensors are reduced on their own device; anything else is converted to numpy.

    >>> reduce_rows([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], [0, 1, -100]).odds.tolist()
    [2.0, 1.0]
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(logits, torch.Tensor):
        return _reduce_tensors(logits, torch.as_tensor(labels), ignore_index)
    return _reduce_arrays(as_array(logits, "logits"), as_array(labels, "labels"), ignore_index)


def statistics_of(logits: Any, labels: Any, ignore_index: int = IGNORED) -> BinStatistics:
    """Return the statistics of one batch."""
    return BinStatistics.from_log_odds(*reduce_rows(logits, labels, ignore_index))


def flat_rows(logits: Array, labels: Array, ignore_index: int) -> tuple[Array, Array]:
    """Return logits (n, k), or (n,) of class 1, and labels (n,), without the ignored rows."""
    _check_shapes(logits.shape, labels.shape)
    if logits.ndim > 1:
        logits = np.moveaxis(logits, 1, -1).reshape(-1, logits.shape[1])
        labels = labels.reshape(-1)
    kept = labels != ignore_index
    return logits[kept], labels[kept]


def _reduce_arrays(logits: Array, labels: Array, ignore_index: int) -> RowTerms:
    logits, labels = flat_rows(logits, labels, ignore_index)
    return row_terms(logits, labels) if len(labels) else NO_ROWS


def _reduce_tensors(logits: Tensor, labels: Tensor, ignore_index: int) -> RowTerms:
    import torch

    if labels.is_floating_point() or labels.is_complex():
        raise DataError("labels_not_integers", f"labels must be class indices, got {labels.dtype}")
    with torch.no_grad(), torch.autocast(logits.device.type, enabled=False):
        _check_shapes(tuple(logits.shape), tuple(labels.shape))
        scores = logits.detach()
        if scores.ndim == 1 or scores.shape[1:] == (1,):
            scores = scores.reshape(-1, 1)
            scores = torch.cat([torch.zeros_like(scores), scores], dim=1)
        scores = scores.movedim(1, -1).reshape(-1, scores.shape[1])
        truth = labels.to(scores.device, torch.int64).reshape(-1)
        kept = truth != ignore_index
        if not bool(kept.all()):
            scores, truth = scores[kept], truth[kept]
        if not len(truth):
            return NO_ROWS
        return _reduce_on_device(scores.to(torch.promote_types(scores.dtype, torch.float32)), truth)


def _reduce_on_device(scores: Tensor, truth: Tensor) -> RowTerms:
    import torch

    classes = scores.shape[1]
    outside = (truth < 0) | (truth >= classes)
    count = int(outside.sum())
    if count:
        first, rule = int(outside.int().argmax()), f"labels must lie in 0..{classes - 1}"
        raise DataError("label_out_of_range", rule, rows=count, first=first)
    largest, top = scores.max(dim=1)
    check_rows(largest.cpu().numpy())
    true = scores.gather(1, truth[:, None])[:, 0]
    check_labelled(true.cpu().numpy())
    odds = largest - scores.scatter(1, top[:, None], -torch.inf).logsumexp(dim=1)
    nll = largest - true + torch.nn.functional.softplus(-odds)
    return RowTerms(*(one.cpu().numpy() for one in (odds, top == truth, nll)))


def _check_shapes(logits: tuple[int, ...], labels: tuple[int, ...]) -> None:
    is_of_one = len(logits) == 1 or logits[1:] == (1,)
    is_of_many = len(logits) > 1 and logits[1] > 1
    if not (is_of_one or is_of_many) or labels != (logits[0], *logits[2:]):
        raise DataError(
            "bad_shape",
            "logits must have shape (n, k) or (n, k, d1, ...) with k > 1 classes, or (n,) or "
            f"(n, 1), and labels (n,) or (n, d1, ...), got {logits} and {labels}",
        )
