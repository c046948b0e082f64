"""Rows drawn from a dataset on disk, and groups that are read in blocks."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wire import npz

from calibrators.judged_rows import fingerprint
from service.core.formats import Format, encode, load, sample
from service.core.task_process import FAILED
from service.core.tasks import TASKS, _answer, limited_memory

ROWS, CLASSES = 30_000, 4
LOGITS = np.random.default_rng(0).normal(size=(ROWS, CLASSES)).astype(np.float32)
TRUTH = np.random.default_rng(1).integers(CLASSES, size=ROWS)
NAMES = np.resize(["web", "app", "shop"], ROWS)


def peak_of(work: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
@pytest.mark.parametrize("format", [Format.NPZ, Format.SAFETENSORS, Format.JSON])
@pytest.mark.parametrize("most", [1000, ROWS])
def test_drawn_rows_are_rows_of_the_dataset(
    tmp_path: Path, kind: Any, format: Format, most: int
) -> None:
    values = LOGITS if kind == "logits" else np.full((ROWS, CLASSES), 1 / CLASSES)
    path = tmp_path / "set"
    path.write_bytes(encode(format, {kind: values, "labels": TRUTH}))
    whole = load(path, format, kind)
    found = sample(path, format, kind, most, 1 << 30)
    assert (found.rows, found.data.n, found.fingerprint) == (ROWS, most, fingerprint(whole))
    drawn = np.sort(np.random.default_rng(0).choice(ROWS, most, replace=False))
    np.testing.assert_array_equal(found.data.logits, whole.logits[drawn])
    np.testing.assert_array_equal(found.data.labels, whole.labels[drawn])


def test_rows_are_drawn_evenly(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    path.write_bytes(npz(logits=LOGITS, labels=TRUTH))
    first, second = (sample(path, Format.NPZ, "logits", ROWS, 40_000).data for _ in range(2))
    assert first.n == 40_000 // CLASSES
    assert np.array_equal(first.logits, second.logits)
    assert first.labels.mean() == pytest.approx(TRUTH.mean(), abs=0.03)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_drawn_rows_keep_their_groups(tmp_path: Path, packed: bool, order: Any) -> None:
    path = tmp_path / "set.npz"
    values = np.asarray(LOGITS, order=order)
    path.write_bytes(npz(packed=packed, logits=values, labels=TRUTH, groups=NAMES))
    whole, found = load(path, Format.NPZ), sample(path, Format.NPZ, "logits", 500, 1 << 30)
    assert whole.groups is not None
    assert found.data.groups is not None
    assert [whole.groups.names[one] for one in whole.groups.codes] == NAMES.tolist()
    drawn = np.sort(np.random.default_rng(0).choice(ROWS, 500, replace=False))
    assert [found.data.groups.names[one] for one in found.data.groups.codes] == (
        NAMES[drawn].tolist()
    )


def test_long_names_take_no_memory(tmp_path: Path) -> None:
    path, rows = tmp_path / "set.npz", 200_000
    names = np.resize(np.array(["a" * 200, "b" * 200]), rows)
    logits, labels = np.zeros((rows, 2), np.int8), np.zeros(rows, np.int8)
    logits[0] = 9
    path.write_bytes(npz(packed=True, logits=logits, labels=labels, groups=names))
    assert peak_of(lambda: load(path, Format.NPZ)) < 20e6
    assert peak_of(lambda: sample(path, Format.NPZ, "logits", 1000, 1 << 30)) < 20e6


def test_the_memory_of_a_task_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    with limited_memory(1 << 28), pytest.raises(MemoryError):
        np.ones(1 << 29, np.uint8)
    assert np.empty(1 << 29, np.uint8).size

    def greedy(request: dict[str, Any]) -> bytes:
        return bytes(np.ones(1 << 31, np.uint8)[:1])

    monkeypatch.setitem(TASKS, "compare", greedy)
    answer = _answer({"task": "compare"})
    assert answer.startswith(FAILED)
    assert b'"too_much_memory"' in answer
