"""Uniform samples of the rows of datasets on disk."""

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
from service.datasets.formats import feature_columns, segment_names
from service.datasets.formats.bodies import Format
from service.datasets.formats.dataset_files import (
    columns,
    load,
    select_columns,
)
from service.datasets.formats.npy import Array, Column, Layout

Rows = NDArray[np.intp]


class Sampled(NamedTuple):
    """A sample, with the row count and fingerprint of the whole dataset."""

    rows: int
    data: CalibrationSet
    fingerprint: str


def sample(
    path: Path,
    format: Format,
    kind: Kind,
    most_rows: int,
    most_values: int,
    *,
    with_features: bool = False,
) -> Sampled:
    """Sample rows uniformly, with a fixed seed, from a dataset that ``inspect`` has accepted.

    Logits are read in blocks, and only the sampled rows are kept. Probabilities are loaded whole,
    because replacing zeros depends on all rows. Features are read only if ``with_features`` is
    true.
    """
    if kind == "probabilities":
        whole = load(path, format, kind, with_features=with_features)
        width = 0 if whole.features is None else whole.features.width
        chosen = _choose_rows(whole.n, whole.k + width, most_rows, most_values)
        return Sampled(whole.n, whole.take(chosen), fingerprint(whole))
    with path.open("rb") as file, TemporaryFile() as spool:
        _, values, labels, segments, seen = select_columns(columns(file, format, 1 << 62), kind)
        rows, classes = values.layout.shape[0], _classes(values.layout)
        column = None if seen is None or not with_features else seen.features
        width = 0 if column is None else column.layout.shape[1]
        chosen = _choose_rows(rows, classes + width, most_rows, most_values)
        truth, logits = _RowCollector(chosen), _RowCollector(chosen)
        digest = fingerprint_of(
            (rows, classes),
            kind,
            truth.collect(_column_blocks(labels)),
            map(row_maxima, logits.collect(map(as_logits, _column_blocks(values.in_rows(spool))))),
        )
        named = None
        if segments is not None:
            named = segment_names.load_rows(segments.layout, segments.rows, chosen)
        features = None
        if column is not None:
            collector = _RowCollector(chosen)
            for _ in collector.collect(feature_columns.blocks(column, spool)):
                pass
            features = collector.rows()
        data = CalibrationSet(logits.rows(), truth.rows(), named, features)
        return Sampled(rows, data, digest)


class _RowCollector:
    """Collector of chosen rows from the blocks of a column."""

    def __init__(self, chosen: Rows) -> None:
        self._chosen = chosen
        self._collected: list[Array] = []

    def collect(self, blocks: Iterable[Array]) -> Iterator[Array]:
        """Yield all blocks unchanged while collecting their chosen rows."""
        start = 0
        for block in blocks:
            first, last = np.searchsorted(self._chosen, (start, start + len(block)))
            self._collected.append(block[self._chosen[first:last] - start])
            start += len(block)
            yield block

    def rows(self) -> Array:
        """Return the chosen rows after all blocks have been consumed."""
        return np.concatenate(self._collected)


def _choose_rows(rows: int, classes: int, most_rows: int, most_values: int) -> Rows:
    most = max(1, min(most_rows, most_values // classes))
    if rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


def _column_blocks(column: Column) -> Iterator[Array]:
    total, step = column.layout.shape[0], column.layout.rows_at_once
    flat = column.layout.shape[1:] in ((), (1,))
    for start in range(0, total, step):
        block = column.rows(start, min(total, start + step))
        yield block.reshape(-1) if flat else block


def _classes(layout: Layout) -> int:
    return max(2, layout.shape[1] if len(layout.shape) > 1 else 1)
