"""Validation passes of training jobs, and the runs they create."""

from __future__ import annotations

import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import calibrd
from calibrd.errors import NotFound
from calibrd.training import AdaFocal, Monitor
from calibrd.training.reporting.outbox import DATABASE
from helpers.faulty_http_proxy import FaultyLine, lose


def drawn(rows: int = 500, classes: int = 7) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(rows, classes)) * 4
    labels = (logits + rng.gumbel(size=logits.shape) * 2).argmax(axis=1)
    return logits, labels


def passes(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    logits, labels = drawn(rows=60 * count)
    return [
        (torch.tensor(logits[part::count]), torch.tensor(labels[part::count]))
        for part in range(count)
    ]


@contextmanager
def nobody() -> Iterator[str]:
    """Return a URL at which no server listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{found.getsockname()[1]}"


def stepped(observing: AdaFocal | Monitor, *batches: tuple[object, object]) -> None:
    for batch in batches:
        observing.observe(*batch)
        observing.step()


def line_of(client: calibrd.Client, run: str) -> list[int]:
    """Return the steps of a run, all of which the service has verified."""
    history = client.run_history(run)
    assert all(step.verified in (True, None) for step in history)
    return [step.step for step in history]


def has_line(client: calibrd.Client, run: str, *steps: int) -> bool:
    """Return whether a run has these steps; a busy service may not know the run yet."""
    try:
        return line_of(client, run) == list(steps)
    except NotFound:
        return False


def in_outbox(folder: Path, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Run a statement in the only outbox below a folder."""
    (path,) = folder.rglob(DATABASE)
    with closing(sqlite3.connect(path)) as database, database:
        return database.execute(statement, values).fetchall()


def unsent(folder: Path) -> list[int]:
    """Return the numbers of the unsent passes in the only outbox below a folder."""
    found = in_outbox(folder, "SELECT number FROM passes WHERE NOT is_sent ORDER BY key, number")
    return [number for (number,) in found]


@contextmanager
def away(line: FaultyLine) -> Iterator[None]:
    """Make the service unreachable within the block."""
    line.before = lambda asked: lose()
    yield
    line.before = lambda asked: None
    time.sleep(0.3)  # the next job must begin later even by clocks that differ slightly
