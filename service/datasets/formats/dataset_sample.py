"""Some rows of a dataset on disk, drawn evenly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrators import CalibrationSet
from calibrators.arrays import row_maxima
from calibrators.comparison.judged_rows import fingerprint, fingerprint_of
from calibrators.data import Kind, as_logits
from service.datasets.formats import segment_names
from service.datasets.formats.bodies import Format
from service.datasets.formats.dataset_files import (
    columns,
    found_columns,
    load,
    rows_at_once,
)
from service.datasets.formats.npy import Array, Column, Layout

Rows = NDArray[np.intp]


class Sampled(NamedTuple):
    """Rows drawn from a dataset: how many it has, those drawn, and the fingerprint of all."""

    rows: int
    data: CalibrationSet
    fingerprint: str


def sample(path: Path, format: Format, kind: Kind, most_rows: int, most_values: int) -> Sampled:
    """Draw rows evenly from a dataset that ``inspect`` has passed; the seed is fixed.

    Logits are read in blocks, and only the drawn rows are kept. Probabilities are loaded whole,
    since what their zeros stand for follows from all rows.
    """
    if kind == "probabilities":
        whole = load(path, format, kind)
        chosen = _drawn(whole.n, whole.k, most_rows, most_values)
        return Sampled(whole.n, whole.take(chosen), fingerprint(whole))
    with path.open("rb") as file, TemporaryFile() as spool:
        _, values, labels, segments = found_columns(columns(file, format, 1 << 62), kind)
        rows, classes = values.layout.shape[0], _classes(values.layout)
        chosen = _drawn(rows, classes, most_rows, most_values)
        truth, logits = _Chosen(chosen), _Chosen(chosen)
        digest = fingerprint_of(
            (rows, classes),
            kind,
            truth.seen(_column_blocks(labels)),
            map(row_maxima, logits.seen(map(as_logits, _column_blocks(values.in_rows(spool))))),
        )
        named = None
        if segments is not None:
            named = segment_names.load_rows(segments.layout, segments.rows, chosen)
        return Sampled(rows, CalibrationSet(logits.taken(), truth.taken(), named), digest)


class _Chosen:
    """Chosen rows of a column, kept while its blocks pass by."""

    def __init__(self, chosen: Rows) -> None:
        self._chosen = chosen
        self._kept: list[Array] = []

    def seen(self, blocks: Iterable[Array]) -> Iterator[Array]:
        """Yield the blocks of all rows in order."""
        start = 0
        for block in blocks:
            first, last = np.searchsorted(self._chosen, (start, start + len(block)))
            self._kept.append(block[self._chosen[first:last] - start])
            start += len(block)
            yield block

    def taken(self) -> Array:
        """Return the chosen rows, once all blocks were seen."""
        return np.concatenate(self._kept)


def _drawn(rows: int, classes: int, most_rows: int, most_values: int) -> Rows:
    most = max(1, min(most_rows, most_values // classes))
    if rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


def _column_blocks(column: Column) -> Iterator[Array]:
    total, step = column.layout.shape[0], rows_at_once(column.layout)
    flat = column.layout.shape[1:] in ((), (1,))
    for start in range(0, total, step):
        block = column.rows(start, min(total, start + step))
        yield block.reshape(-1) if flat else block


def _classes(layout: Layout) -> int:
    return max(2, layout.shape[1] if len(layout.shape) > 1 else 1)
