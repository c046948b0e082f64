"""What AdaFocal and Monitor share: they observe validation passes and report them as a run."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from calibrators.adafocal import BinStatistics, Settings
from calibrators.errors import DataError
from calibrd.api.runs import checked_run
from calibrd.training.distributed import Apart, is_distributed, ranks_of
from calibrd.training.reporting.messages import Kind, Start, checked_session, state_of
from calibrd.training.reporting.reporter import Link, Service, connection_of
from calibrd.training.row_statistics import Tally, reduced

BUDGET_SECONDS = 2.0
MOST_SECONDS = 86_400.0

_log = logging.getLogger("calibrd")


class Observer:
    """One job of a run, in the process that made it; copies elsewhere neither observe nor step."""

    kind: Kind

    def __init__(
        self,
        client: Service,
        run: str,
        settings: Settings | None,
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
        if not isinstance(budget, int | float) or not 0 < budget <= MOST_SECONDS:
            raise ValueError(
                f"budget must be a number of seconds above 0, at most {MOST_SECONDS:g}, "
                f"got {budget!r}"
            )
        self.run = checked_run(run)
        self.ignore_index = ignore_index
        self._process: int | None = os.getpid()
        self._observed = Tally()
        self._is_found = rank is None
        self._ranks = ranks_of(rank, world_size, checked_session(session))
        if client is None and self._ranks.decides == "service":
            raise ValueError(
                "client must be given where ranks are: without a service, ranks come to the same "
                "state by torch.distributed alone"
            )
        self._link: Link | None = None
        self._is_closed = False
        options = {"budget": budget, "session": session, "folder": folder}
        self._start = self._agreed_start(client, settings, first, fresh=fresh, **options)

    def observe(self, logits: Any, labels: Any) -> None:
        """Add a batch of the validation pass: logits (n, k) or (n, k, d1, ...) and labels.

        Tensors are reduced on their device to counts; nothing else of them is kept or sent.
        """
        self._check_is_here()
        self._observed.add(reduced(logits, labels, self.ignore_index))

    def discard(self) -> None:
        """Forget what was observed since the last step."""
        self._observed = Tally()

    def close(self) -> None:
        """Send what can be sent within the budget; what is left, the next process sends.

        All ranks call it: the next step of each is an error.
        """
        self._is_closed = True
        if self._link is not None and self._process == os.getpid():
            self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process, such as a DataLoader's worker, has nothing to send."""
        return {**vars(self), "_process": None, "_link": None, "_ranks": Apart()}

    def _merged(self) -> BinStatistics:
        """What all ranks have observed; the same error on all if that is nothing."""
        self._check_is_here()
        if self._is_closed:
            raise RuntimeError(f"the {type(self).__name__} of {self.run!r} is closed")
        if self._is_found and isinstance(self._ranks, Apart) and is_distributed():
            raise RuntimeError(
                f"{type(self).__name__} was made before torch.distributed was in use: make it "
                "after init_process_group"
            )
        merged = self._ranks.merged(self._observed.total())
        if not merged.rows:
            raise DataError("empty", "no row was observed: call observe before step")
        self._observed = Tally()
        return merged

    def _agreed_start(
        self,
        client: Service,
        settings: Settings | None,
        first: Start,
        *,
        fresh: bool,
        **options: Any,
    ) -> Start:
        """Where to begin, the same on all ranks, as is what keeps rank 0 from it."""
        problem: Exception | None = None
        try:
            connection = connection_of(client) if self._ranks.reports else None
            if connection is not None:
                self._link = Link(connection, self.run, self.kind, settings, self._ranks, **options)
                first = self._link.begin(first, fresh=fresh)
        except Exception as error:  # noqa: BLE001 - raised below, on all ranks
            problem = error
        state = first.state and first.state.to_dict()
        told = self._ranks.agreed(
            {"problem": problem and str(problem), "step": first.step, "state": state}
        )
        if problem is not None:
            raise problem
        if told["problem"] is not None:
            raise RuntimeError(f"rank 0 cannot begin: {told['problem']}")
        return Start(told["step"], state_of(told["state"]))

    def _note_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        given = (checkpoint or {}).get("run", self.run)
        if given != self.run:
            _log.warning("%s: goes on from a checkpoint of another run, %s", self.run, given)

    def _check_is_here(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError(
                f"this is a copy of the {type(self).__name__} that was made, or was forked with "
                "it: only that, in its own process, can observe and step"
            )
