"""SECA's diagnostics in a monitor: entropy, divergence and cosine per class in each batch."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing
from helpers.training_passes import drawn
from scipy.spatial.distance import cosine
from scipy.special import softmax
from scipy.stats import entropy
from torch import distributed

from calibrators.metrics import ClassAgreement
from calibrd.training import Monitor
from calibrd.training.monitor import agreement_of

ROWS = 60


def by_sample(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
    """Return the three diagnostics, computed sample by sample."""
    p = softmax(logits, axis=1)
    divergences, cosines = [], []
    for i, label in enumerate(labels):
        mine = labels == label
        cosines.append(1 - cosine(p[i], p[mine].mean(axis=0)))
        mine[i] = False
        if mine.any():
            divergences.append(entropy(p[mine].mean(axis=0), p[i]))
    return (
        float(np.mean([entropy(row) for row in p])),
        float(np.mean(divergences)),
        float(np.mean(cosines)),
    )


def values_of(found: ClassAgreement | None) -> tuple[float, float, float]:
    assert found is not None
    return found.entropy, found.kl_divergence, found.cosine


def test_they_are_means_over_samples() -> None:
    logits, labels = drawn(rows=ROWS)
    found = agreement_of(logits, labels)
    assert values_of(found) == pytest.approx(by_sample(logits, labels))
    order = np.random.default_rng(0).permutation(ROWS)
    assert values_of(agreement_of(logits[order], labels[order])) == pytest.approx(values_of(found))


def test_a_sample_alone_in_its_class_has_no_divergence() -> None:
    logits = np.array([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 2.0, 0.0]])
    found = agreement_of(logits, [0, 1, 1])
    assert (found.rows, found.rows_with_others) == (3, 2)
    alone = agreement_of(logits[:1], [0])
    assert alone.cosine == pytest.approx(1.0)
    assert math.isnan(alone.kl_divergence)
    assert math.isnan(ClassAgreement().entropy)


def test_equal_predictions_agree_and_impossible_classes_count_nothing() -> None:
    logits = np.array([[2.0, 0.5, -np.inf]] * 4)
    assert values_of(agreement_of(logits, [1] * 4)) == pytest.approx(
        (entropy(softmax([2.0, 0.5])), 0.0, 1.0), abs=1e-12
    )


def test_tensors_pixels_ignored_rows_and_one_column() -> None:
    logits, labels = drawn(rows=ROWS)
    wanted = values_of(agreement_of(logits, labels))
    image = torch.tensor(logits.reshape(3, 4, 5, 7).transpose(0, 3, 1, 2), requires_grad=True)
    assert values_of(agreement_of(image, torch.tensor(labels.reshape(3, 4, 5)))) == pytest.approx(
        wanted
    )
    half = torch.tensor(logits).to(torch.bfloat16)
    assert values_of(agreement_of(half, labels)) == pytest.approx(wanted, rel=0.02)
    more = np.concatenate([logits, logits[:5]])
    marked = np.concatenate([labels, np.full(5, -100)])
    assert values_of(agreement_of(more, marked)) == pytest.approx(wanted)
    two = np.stack([np.zeros(ROWS), logits[:, 0]], axis=1)
    for column in (logits[:, 0], logits[:, :1]):
        assert agreement_of(column, labels % 2) == agreement_of(two, labels % 2)


def test_a_monitor_has_them_for_each_pass_by_batch() -> None:
    logits, labels = drawn(rows=2 * ROWS)
    monitor = Monitor(None, run="watched", diagnose=True)
    assert monitor.agreement is None
    for half in (slice(ROWS), slice(ROWS, None)):
        monitor.observe(torch.tensor(logits[half]), torch.tensor(labels[half]))
    monitor.step()
    parts = [by_sample(logits[half], labels[half]) for half in (slice(ROWS), slice(ROWS, None))]
    found = values_of(monitor.agreement)
    assert (found[0], found[2]) == pytest.approx(tuple(np.mean(parts, axis=0)[[0, 2]]))
    assert found[1] != pytest.approx(by_sample(logits, labels)[1])  # classes of both batches
    monitor.observe(logits[:30], labels[:30])
    monitor.discard()
    monitor.observe(logits, labels)
    monitor.step()
    assert values_of(monitor.agreement) == pytest.approx(by_sample(logits, labels))
    plain = Monitor(None, run="plain")
    plain.observe(logits, labels)
    plain.step()
    assert plain.agreement is None


def rank(number: int, folder: str) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    distributed.init_process_group("gloo", init_method=meeting, rank=number, world_size=2)
    logits, labels = drawn(rows=2 * ROWS)
    monitor = Monitor(None, run="ranks", diagnose=True)
    monitor.observe(logits[number::2], labels[number::2])
    monitor.step()
    torch.save(values_of(monitor.agreement), f"{folder}/{number}.pt")
    distributed.destroy_process_group()


def test_ranks_have_the_mean_of_all(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(rank, (str(tmp_path),), nprocs=2)  # type: ignore[no-untyped-call]
    logits, labels = drawn(rows=2 * ROWS)
    wanted = agreement_of(logits[::2], labels[::2]) + agreement_of(logits[1::2], labels[1::2])
    for number in (0, 1):
        assert torch.load(tmp_path / f"{number}.pt") == pytest.approx(values_of(wanted))
