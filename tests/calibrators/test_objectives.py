"""Objectives: analytic gradients compared with finite differences, autograd and formulas."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from helpers.samples import draw

from calibrators.errors import ParameterError
from calibrators.numerics.confidence_curves import observe
from calibrators.numerics.objectives import ObjectiveName, make_objective

NAMES = get_args(ObjectiveName)


def reference(name: str, z: torch.Tensor, y: torch.Tensor, log_beta: torch.Tensor) -> torch.Tensor:
    """Return each objective by its formula, differentiated by autograd."""
    logs = torch.log_softmax(z * log_beta.exp()[:, None], dim=1)
    own = logs.gather(1, y[:, None])[:, 0]
    p = logs.exp()
    c, a = p.max(dim=1).values, (z.argmax(dim=1) == y).double()
    match name:
        case "nll":
            return -own.mean()
        case "label_smoothing":
            return -(0.95 * own + 0.05 * logs.mean(dim=1)).mean()
        case "mse":
            return ((c - a) ** 2).mean()
        case "brier":
            return ((p - torch.nn.functional.one_hot(y, z.shape[1])) ** 2).sum(dim=1).mean()
        case "mae":
            return ((c - a) ** 2 + 1e-6).sqrt().mean()
    delta = 1e-3 if name == "charbonnier" else 0.0
    centres = (torch.arange(15, dtype=torch.float64) + 0.5) / 15
    w = torch.softmax(-200 * (c[:, None] - centres) ** 2, dim=1)
    if name == "charbonnier_per_sample":
        return (w * ((a[:, None] - centres) ** 2 + 1e-6).sqrt()).sum(dim=1).mean()
    residual = (w * (a - c)[:, None]).sum(dim=0)
    return (residual**2 + (delta * w.sum(dim=0)) ** 2).sqrt().sum() / len(c)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("k", [3, 150])
def test_value_and_gradient_are_those_of_the_formula(name: str, k: int) -> None:
    data = draw(400, k, dtype=np.float64)
    log_beta = np.random.default_rng(0).uniform(-1, 1, size=data.n)
    value, gradient = make_objective(name, observe(data, 0.5, with_mean_gaps=True))(
        np.exp(log_beta)
    )
    variable = torch.tensor(log_beta, requires_grad=True)
    expected = reference(
        name, torch.from_numpy(data.logits * 0.5), torch.tensor(data.labels), variable
    )
    expected.backward()
    assert value == pytest.approx(expected.item(), rel=1e-4)
    scale = float(variable.grad.abs().max())
    assert np.abs(gradient - variable.grad.numpy()).max() < 3e-3 * scale


@pytest.mark.parametrize("name", NAMES)
def test_torch_and_numpy_agree(name: str, device: str) -> None:
    data = draw(300, 6)
    beta = np.linspace(0.2, 5, data.n)
    ours, theirs = (
        make_objective(name, observe(data, device=one, with_mean_gaps=True))
        for one in (None, device)
    )
    ours, theirs = ours(beta), theirs(torch.from_numpy(beta).to(device))
    assert ours[0] == pytest.approx(theirs[0], rel=1e-6)
    np.testing.assert_allclose(ours[1], theirs[1].cpu().numpy(), atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_a_weight_is_as_many_rows(name: str) -> None:
    data = draw(200, 4)
    counts = np.random.default_rng(1).integers(1, 5, size=data.n)
    beta = np.linspace(0.2, 5, data.n)
    once = observe(data, with_mean_gaps=True)
    weighted = replace(once, weight=counts.astype(float), n=int(counts.sum()))
    repeated = data.take(np.repeat(np.arange(data.n), counts))
    value, gradient = make_objective(name, weighted)(beta)
    expected, parts = make_objective(name, observe(repeated, with_mean_gaps=True))(
        np.repeat(beta, counts)
    )
    assert value == pytest.approx(expected, rel=1e-9)
    sums = np.add.reduceat(parts, np.cumsum(counts) - counts)
    np.testing.assert_allclose(gradient, sums, rtol=1e-6, atol=1e-12)


def test_label_smoothing_refuses_samples_without_mean_gaps() -> None:
    with pytest.raises(ParameterError, match="needs samples with mean_gap"):
        make_objective("label_smoothing", observe(draw(20, 3)))


@pytest.mark.parametrize("name", ["charbonnier_per_sample", "mae"])
def test_equation_6_rewards_certainty_and_the_binned_form_does_not(name: str) -> None:
    """This is why SMART uses the binned form: Eq. 6 prefers hard predictions to calibrated ones."""
    calibrated = draw(20_000, 4, temperature=1.0, dtype=np.float64)
    samples = observe(calibrated)
    honest, hard = np.ones(calibrated.n), np.full(calibrated.n, 50.0)
    per_sample, binned = make_objective(name, samples), make_objective("charbonnier", samples)
    assert per_sample(hard)[0] < per_sample(honest)[0]
    assert binned(honest)[0] < 0.2 * binned(hard)[0]


def test_unknown_objectives_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown objective 'nl'"):
        make_objective("nl", observe(draw(10, 2)))
