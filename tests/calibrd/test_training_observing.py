"""Statistics of a validation pass are equal for tensors and arrays of any shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.training_passes import drawn

from calibrators import DataError
from calibrators.adafocal import BinStatistics
from calibrd.training import observer
from calibrd.training.observer import RunningStatistics, reduce_rows, statistics_of


def check_near(found: BinStatistics, wanted: BinStatistics) -> None:
    """Check that two results are equal up to float32 rounding."""
    assert found.rows == wanted.rows
    for name in ("accuracy", "confidence", "ece", "ada_ece", "nll"):
        assert getattr(found.summary(), name) == pytest.approx(
            getattr(wanted.summary(), name), abs=2e-5
        )


def test_tensors_give_the_same_results_as_arrays(device: str) -> None:
    logits, labels = drawn()
    wanted = BinStatistics.from_logits(logits, labels)
    place = torch.device(device)
    kinds = (torch.float32,) if device == "mps" else (torch.float32, torch.float64)
    for kind in kinds:
        found = statistics_of(
            torch.tensor(logits, dtype=kind, device=place), torch.tensor(labels, device=place)
        )
        check_near(found, wanted)
    check_near(statistics_of(logits, labels), wanted)
    assert statistics_of(torch.tensor(logits), labels).rows == wanted.rows


def test_half_precision_is_widened_before_it_is_reduced() -> None:
    logits, labels = drawn()
    half = torch.tensor(logits).to(torch.bfloat16).requires_grad_()
    check_near(statistics_of(half, torch.tensor(labels)), statistics_of(half.double(), labels))


def test_pixels_and_ignored_labels() -> None:
    logits, labels = drawn(rows=6 * 4 * 5)
    images = logits.reshape(6, 4, 5, 7).transpose(0, 3, 1, 2)
    masks = labels.reshape(6, 4, 5).copy()
    masks[::2, 1] = 255
    kept = masks.reshape(-1) != 255
    wanted = BinStatistics.from_logits(logits[kept], labels[kept])
    check_near(statistics_of(images, masks, 255), wanted)
    check_near(statistics_of(torch.tensor(images), torch.tensor(masks), 255), wanted)
    nothing = statistics_of(torch.tensor(images), torch.full((6, 4, 5), 255), 255)
    assert nothing == BinStatistics.empty() == statistics_of(images, masks * 0 + 255, 255)


def test_one_column_is_the_logit_of_class_1() -> None:
    logits, labels = drawn(classes=2)
    margin = logits[:, 1] - logits[:, 0]
    wanted = BinStatistics.from_logits(margin, labels)
    for given in (margin, margin[:, None]):
        check_near(statistics_of(given, labels), wanted)
        check_near(statistics_of(torch.tensor(given), torch.tensor(labels)), wanted)


def test_impossible_classes_and_certain_rows_are_valid() -> None:
    logits = torch.tensor([[float("-inf"), 900.0, -900.0], [0.0, float("-inf"), float("-inf")]])
    for given in (logits, logits.double().numpy()):
        found = statistics_of(given, torch.tensor([1, 0])).summary()
        assert (found.accuracy, found.confidence, found.nll) == (1.0, 1.0, 0.0)


def test_a_tally_is_the_sum_of_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "AT_ONCE", 64)
    logits, labels = drawn()
    tally, total = RunningStatistics(), BinStatistics.empty()
    assert tally.total() == total
    for start in range(0, len(labels), 25):
        batch = reduce_rows(logits[start : start + 25], labels[start : start + 25])
        tally.add(batch)
        total += BinStatistics.from_log_odds(*batch)
    assert tally.total() == tally.total() == total
    assert total.rows == len(labels)


@pytest.mark.parametrize(
    ("logits", "labels", "code"),
    [
        (torch.zeros(4, 3), torch.zeros(4), "labels_not_integers"),
        (torch.zeros(4, 3), torch.tensor([0, 1, 2, 3]), "label_out_of_range"),
        (torch.zeros(4, 3), torch.tensor([0, 1, 2, -1]), "label_out_of_range"),
        (torch.zeros(4, 3), torch.zeros(3, dtype=torch.int64), "bad_shape"),
        (torch.zeros(4, 3, 2), torch.zeros(4, 3, dtype=torch.int64), "bad_shape"),
        (torch.zeros(4, 1, 2), torch.zeros(4, 2, dtype=torch.int64), "bad_shape"),
        (np.zeros((4, 1, 2)), np.zeros((4, 2), dtype=int), "bad_shape"),
        (torch.zeros(4, 1), torch.zeros((4, 1), dtype=torch.int64), "bad_shape"),
        (torch.full((4, 3), torch.nan), torch.zeros(4, dtype=torch.int64), "nan"),
        (torch.full((4, 3), torch.inf), torch.zeros(4, dtype=torch.int64), "infinite"),
        (np.full((4, 3), np.nan), np.zeros(4, dtype=int), "nan"),
        (np.array([[0.0, -np.inf]]), np.array([1]), "label_on_minus_infinity"),
        (torch.tensor([[0.0, -torch.inf]]), torch.tensor([1]), "label_on_minus_infinity"),
        (np.zeros((4, 3, 2)), np.zeros((4, 3), dtype=int), "bad_shape"),
    ],
)
def test_invalid_rows_are_refused(logits: object, labels: object, code: str) -> None:
    with pytest.raises(DataError) as caught:
        statistics_of(logits, labels)
    assert caught.value.code == code
    if code == "bad_shape":
        shapes = [str(tuple(one.shape)) for one in (logits, labels)]
        assert str(caught.value).endswith(f"got {shapes[0]} and {shapes[1]}")
