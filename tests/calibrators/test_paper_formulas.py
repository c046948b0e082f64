"""Formulas of the papers that no other test checks, each written from its paper in a few lines."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.loss_batches import CLASSES, batch, made
from helpers.samples import draw

from calibrators.losses.selective_risk import confidence_score
from calibrators.methods._smart_features import Indicator, indicate
from calibrators.methods.smart import Smart
from calibrators.methods.temperature import TemperatureMap
from calibrators.metrics import TopLabel, debiased_squared_error, ece_sweep


@pytest.mark.parametrize("target", [0.15, 0.3, 0.5])
def test_equation_13_of_smart_bounds_t_from_below_only_for_targets_up_to_a_half(
    target: float,
) -> None:
    """T >= m / -log(S / (K - 1)); no finite bound from above, which Eq. 9 and 10 show."""
    k, rest = 10, 1 / target - 1
    for delta in (0.1, 5.0, 300.0):  # all others at z_max - delta: T runs over (0, infinity)
        temperature = -delta / math.log(rest / (k - 1))
        found = TemperatureMap(k=k, temperature=temperature).apply([[delta, *[0.0] * (k - 1)]])
        assert found.max() == pytest.approx(target, rel=1e-5)
    second = 1e-6  # a small margin, and the others far below, need any T at all
    z = np.array([[0.0, -second, *[-4.0] * (k - 2)]])
    lowest = second / -math.log(rest / (k - 1))
    for temperature in (2 * lowest, 1.0, 100.0):
        p = TemperatureMap(k=k, temperature=temperature).apply(z).max()
        bound = second / -math.log((1 / p - 1) / (k - 1))
        assert bound <= temperature * (1 + 1e-3)


@pytest.mark.parametrize("indicator", ["entropy", "confidence", "max_logit", "max_minus_mean"])
def test_the_indicators_of_smarts_table_4(indicator: Indicator) -> None:
    z = draw(50, 7, dtype=np.float64).logits / 1.7
    found = indicate(indicator, 1.7 * z, 1.7)
    for row, value in zip(z.tolist(), found[:, 0].tolist(), strict=True):
        total = sum(math.exp(one) for one in row)
        p = [math.exp(one) / total for one in row]
        expected = {
            "entropy": -sum(one * math.log(one) for one in p),
            "confidence": max(p),
            "max_logit": max(row),
            "max_minus_mean": max(row) - sum(row) / len(row),
        }[indicator]
        assert value == pytest.approx(expected)


@pytest.mark.parametrize("as_published", [False, True])
def test_smarts_network_is_section_3_5_with_49_parameters(as_published: bool) -> None:
    data = draw(300, 4, dtype=np.float64)
    fitted = Smart(steps=3, as_published=as_published).fit(data)
    assert fitted.w1.size + fitted.b1.size + fitted.w2.size + 1 == 49
    for row, temperature in zip(data.logits[:20], fitted.temperatures(data.logits), strict=False):
        first, second = sorted(row / fitted.base_temperature, reverse=True)[:2]
        m = (first - second - fitted.centre[0]) / fitted.spread[0]
        h = np.maximum(fitted.w1[0] * m + fitted.b1, 0)
        t = math.log1p(math.exp(fitted.w2 @ h + fitted.b2)) + 0.1
        assert temperature == pytest.approx(fitted.base_temperature * t)


def distinct(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Confidences without ties, ascending, and whether each row is right."""
    rng = np.random.default_rng(seed)
    confidence = np.sort(rng.beta(5, 2, size=rows))
    return confidence, rng.random(rows) < confidence**2


def test_the_debiased_error_takes_off_each_bins_variance() -> None:
    """Sum of n_b / n ((C - A)^2 - A (1 - A) / (n_b - 1)) over equal-mass bins."""
    confidence, correct = distinct(0, 300)
    expected = 0.0
    for c, a in zip(np.split(confidence, 15), np.split(correct.astype(float), 15), strict=True):
        gap, accuracy = c.mean() - a.mean(), a.mean()
        expected += (gap**2 - accuracy * (1 - accuracy) / (len(c) - 1)) * len(c) / 300
    found = debiased_squared_error(TopLabel(confidence, correct), bins=15)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(4))
def test_the_sweep_over_equal_mass_is_a_loop_over_its_bins(seed: int) -> None:
    rows = 5040  # every number of bins up to 10 divides it
    confidence, correct = distinct(seed, rows)
    bins, error = 0, np.nan
    while bins < 10:
        pieces = np.split(np.arange(rows), bins + 1)
        accuracy = [correct[one].mean() for one in pieces]
        if sorted(accuracy) != accuracy:
            break
        bins += 1
        error = sum(abs((correct - confidence)[one].sum()) for one in pieces) / rows
    found = ece_sweep(TopLabel(confidence, correct), max_bins=10)
    assert bins > 3
    assert found == pytest.approx(error)


def test_label_smoothing_is_cross_entropy_with_a_mixed_target() -> None:
    logits, labels, _ = batch()
    target = (1 - 0.1) * F.one_hot(labels, CLASSES) + 0.1 / CLASSES
    expected = -(target * torch.log_softmax(logits, dim=1)).sum(dim=1).mean()
    torch.testing.assert_close(made("label_smoothing", smoothing=0.1)(logits, labels), expected)


@pytest.mark.parametrize("gamma", [1.0, 3.0, 5.0])
def test_focal_loss_is_at_least_the_divergence_less_gamma_entropies(gamma: float) -> None:
    """AdaFocal, section 3: L_FL >= KL(q || p) - gamma H(p), for every row."""
    logits, labels, _ = batch()
    p = torch.softmax(logits, dim=1)
    entropy = -(p * p.log()).sum(dim=1)
    losses = made("focal", gamma=gamma).losses(logits, labels)
    assert bool(
        (losses >= F.cross_entropy(logits, labels, reduction="none") - gamma * entropy).all()
    )


@pytest.mark.parametrize(("name", "sign"), [("focal", -1), ("inverse_focal", 1)])
@pytest.mark.parametrize("gamma", [1.0, 2.0, 3.0])
def test_gradients_of_both_focal_losses_in_p(name: str, sign: int, gamma: float) -> None:
    """AU, appendix C.1 and C.2: d/dp of -(1 +- p)^gamma ln p, times p (1 - p) in the logit."""
    p = torch.linspace(0.02, 0.98, 25).double()
    logits = torch.stack([torch.logit(p), torch.zeros(25).double()], dim=1).requires_grad_()
    losses = made(name, gamma=gamma).losses(logits, torch.zeros(25, dtype=torch.long))
    losses.sum().backward()
    base = 1 + sign * p
    slope = -(base**gamma) / p - sign * gamma * base ** (gamma - 1) * p.log()
    torch.testing.assert_close(logits.grad[:, 0], slope * p * (1 - p))


@pytest.mark.parametrize("score", ["msp", "neg_entropy", "margin"])
def test_the_confidence_scores_of_aus_appendix_table_1(score: str) -> None:
    logits, _, _ = batch()
    found = confidence_score(torch.log_softmax(logits, dim=1), score)
    for row, value in zip(torch.softmax(logits, dim=1).tolist(), found.tolist(), strict=True):
        second, first = sorted(row)[-2:]
        expected = {
            "msp": first,
            "neg_entropy": sum(one * math.log(one) for one in row),
            "margin": first - second,
        }[score]
        assert value == pytest.approx(expected, rel=1e-5)


def test_secas_loss_in_loops_over_rows_and_classes() -> None:
    """SECA, Eq. 4 to 7: the target of a row is its one-hot label plus the mean of its class."""
    logits, labels, _ = batch()
    p = torch.softmax(logits, dim=1).tolist()
    known = labels.tolist()
    total = 0.0
    for row, label in zip(p, known, strict=True):
        own = [other for other, its in zip(p, known, strict=True) if its == label]
        for column in range(CLASSES):
            target = float(column == label) + sum(one[column] for one in own) / len(own)
            total -= target * math.log(row[column])
    assert made("seca")(logits, labels).item() == pytest.approx(total / len(p), rel=1e-5)


def test_seca_ends_less_confident_than_the_truth_where_classes_overlap() -> None:
    """The zero of Eq. 12 in expectation: p(x) = (eta(x) + sum of eta_c(x) mu_c) / 2."""
    counts = torch.tensor([[9, 1, 0], [6, 3, 1], [2, 7, 1], [0, 2, 8]])  # of labels at each of 4 x
    x, labels = (one.repeat_interleave(counts.ravel()) for one in _grid(*counts.shape))
    table = torch.zeros(counts.shape, dtype=torch.float64, requires_grad=True)
    loss = made("seca")
    steps = torch.optim.SGD([table], lr=4.0)
    for _ in range(2000):
        steps.zero_grad()
        loss(table[x], labels).backward()
        steps.step()
    p = torch.softmax(table.detach(), dim=1)
    eta = counts / counts.sum(dim=1, keepdim=True)
    means = torch.stack([p[x[labels == one]].mean(dim=0) for one in range(3)])
    torch.testing.assert_close(p, (eta + eta.double() @ means) / 2, atol=1e-4, rtol=0)
    assert bool((p.amax(dim=1) < eta.amax(dim=1) - 0.04).all())


def _grid(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the row and column of each cell, row by row."""
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return row.ravel(), column.ravel()
