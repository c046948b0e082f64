"""SMART: its theorems, its gradients, and its results on data with a known truth."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from helpers.samples import draw, sample, two_regimes
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from calibrators import CalibrationSet, FitError, archive
from calibrators.errors import BoundarySolution, FellBack, FlatLogits, NotConverged
from calibrators.export import onnx
from calibrators.methods import smart
from calibrators.methods._smart_features import Indicator, indicate
from calibrators.methods.smart import NEUTRAL, Smart, SmartMap, initial_weights
from calibrators.methods.temperature import TemperatureMap, TemperatureScaling
from calibrators.metrics import accuracy, ece
from calibrators.numerics.cells import MAX_CELLS
from calibrators.numerics.confidence_curves import to_device
from calibrators.numerics.objectives import ObjectiveName
from calibrators.numerics.softmax import margins


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    k=st.integers(2, 50),
    temperature=st.floats(0.05, 20),
    seed=st.integers(0, 2**31),
    spread=st.floats(0.1, 10),
)
def test_margin_bounds(k: int, temperature: float, seed: int, spread: float) -> None:
    """Paper, A.1: m / -log(S/(K-1)) <= T <= m / -log S with S = 1/q - 1, for q > 1/2."""
    z = np.random.default_rng(seed).normal(size=(1, k)) * spread
    q = TemperatureMap(k=k, temperature=temperature).apply(z).max()
    assume(0.5 < q <= 1 - 1e-9)
    margin, odds = margins(z)[0], 1 / q - 1
    upper = margin / -np.log(odds)
    lower = margin / -np.log(odds / (k - 1))
    assert lower <= temperature * (1 + 1e-6)
    assert temperature <= upper * (1 + 1e-6)
    if k == 2:
        assert lower == pytest.approx(upper)


def test_starts_at_the_temperature_scaling_solution() -> None:
    data = draw(800, 4)
    w1, b1 = initial_weights(0, 1, 16)
    scaled = TemperatureScaling().fit(data)
    start = SmartMap(
        k=4,
        base_temperature=scaled.temperature,
        indicator="margin",
        centre=np.zeros(1),
        spread=np.ones(1),
        w1=w1,
        b1=b1,
        w2=np.zeros(16),
        b2=NEUTRAL,
    )
    np.testing.assert_allclose(start.apply(data.logits), scaled.apply(data.logits), atol=1e-6)


def autograd(data: CalibrationSet, steps: int) -> torch.Tensor:
    """Return temperatures of the same model trained by autograd through the softmax."""
    base = TemperatureScaling().fit(data).temperature
    z = torch.from_numpy(data.logits.astype(np.float64)) / base
    y = torch.tensor(data.labels)
    top = z.topk(2, dim=1).values
    margin = top[:, 0] - top[:, 1]
    signal = ((margin - margin.mean()) / margin.std(unbiased=False))[:, None]
    start = (*initial_weights(0, 1, 16), np.zeros(16), np.array(NEUTRAL))
    w1, b1, w2, b2 = weights = [torch.tensor(one, requires_grad=True) for one in start]
    optimiser = torch.optim.Adam(weights, lr=5e-3)
    centres = (torch.arange(15, dtype=torch.float64) + 0.5) / 15

    def temperatures() -> torch.Tensor:
        raised = torch.relu(signal @ w1 + b1) @ w2 + b2
        return torch.nn.functional.softplus(raised) + 0.1

    for _ in range(steps):
        optimiser.zero_grad()
        c = torch.softmax(z / temperatures()[:, None], dim=1).max(dim=1).values
        w = torch.softmax(-200 * (c[:, None] - centres) ** 2, dim=1)
        residual = (w * ((z.argmax(dim=1) == y).double() - c)[:, None]).sum(dim=0)
        loss = (residual**2 + (1e-3 * w.sum(dim=0)) ** 2).sqrt().sum() / len(c)
        loss.backward()
        optimiser.step()
    return temperatures().detach() * base


@pytest.mark.parametrize("k", [3, 200])
def test_agrees_with_autograd_through_the_softmax(k: int) -> None:
    data = draw(1500, k, temperature=2.0)
    ours = Smart(steps=20).fit(data).apply(data.logits).max(axis=1)
    theirs = autograd(data, 20).numpy()
    expected = softmax(data.logits / theirs[:, None], axis=1).max(axis=1)
    np.testing.assert_allclose(ours, expected, atol=1e-4)


def test_corrects_errors_that_one_temperature_cannot() -> None:
    fit, _ = two_regimes(8000, 0)
    test, truth = two_regimes(8000, 1)
    errors = {
        recipe.name: np.abs(recipe.fit(fit).apply(test.logits).max(axis=1) - truth).mean()
        for recipe in (Smart(), TemperatureScaling())
    }
    assert errors["smart"] < 0.5 * errors["temperature"]


def test_real_sample() -> None:
    cal, test = sample("cal"), sample("test")
    p = Smart().fit(cal).apply(test.logits)
    assert accuracy(p, test.labels) == accuracy(softmax(test.logits, axis=1), test.labels)
    assert ece(p, test.labels) < 0.012


@pytest.mark.parametrize(("n", "k"), [(1500, 4), (1500, 40), (9000, 4)])
def test_numpy_and_torch_give_the_same_map(n: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Confidences agree to 1e-4, with rows merged or not, because sums are rounded differently."""
    data = draw(n, k, temperature=2.0)
    by_numpy = Smart().fit(data)
    monkeypatch.setattr(smart, "array_device", lambda name: "cpu")
    made = []
    monkeypatch.setattr(smart, "to_device", lambda *one: made.append(to_device(*one)) or made[-1])
    by_torch = Smart().fit(data)
    assert isinstance(made[0], torch.Tensor)
    np.testing.assert_allclose(by_numpy.apply(data.logits), by_torch.apply(data.logits), atol=1e-4)


ALONE = """
import hashlib, sys
import numpy as np
from calibrators import CalibrationSet, archive
from calibrators.methods.smart import Smart
rng = np.random.default_rng(0)
logits = (rng.normal(size=(6000, 300)) * 2).astype(np.float32)
labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
made = archive.dump(Smart(steps=20).fit(CalibrationSet(logits, labels)))
print("torch" in sys.modules, hashlib.sha256(made).hexdigest())
"""


def test_a_fit_on_the_cpu_loads_no_torch_and_has_the_same_bits_on_any_threads() -> None:
    said = [
        subprocess.run(
            [sys.executable, "-c", ALONE],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads},
        ).stdout.split()
        for threads in ("1", "2")
    ]
    assert said[0] == said[1]
    assert said[0][0] == "False"


@pytest.mark.parametrize("indicator", ["margin", "entropy"])
def test_merged_rows_give_the_map_of_all_rows(
    indicator: Indicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, test = two_regimes(8000, 0)[0], two_regimes(8000, 1)[0]
    merged = Smart(indicator=indicator).fit(fit)
    monkeypatch.setattr(smart, "MAX_CELLS", 10**9)
    whole = Smart(indicator=indicator).fit(fit)
    p, q = merged.apply(test.logits), whole.apply(test.logits)
    assert not np.array_equal(p, q)
    assert np.abs(p - q).mean() < 3e-3
    assert abs(ece(p, test.labels) - ece(q, test.labels)) < 3e-3
    assert merged.fit_info["value"] == pytest.approx(whole.fit_info["value"], abs=1e-3)


@pytest.mark.parametrize("recipe", [Smart(indicator="all_logits"), Smart(objective="brier")])
def test_objectives_that_cannot_merge_rows_use_all_of_them(
    recipe: Smart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smart, "observe_cells", None)
    assert replace(recipe, steps=5).fit(draw(MAX_CELLS + 1, 4)).method == "smart"


def test_seed_changes_the_start_only() -> None:
    data = draw(2000, 5)
    maps = [Smart(seed=seed).fit(data) for seed in (0, 0, 1)]
    assert archive.dump(maps[0]) == archive.dump(maps[1])
    p = [one.apply(data.logits) for one in maps]
    assert not np.array_equal(p[0], p[2])
    assert np.abs(p[0] - p[2]).mean() < 0.01


@pytest.mark.parametrize("indicator", get_args(Indicator))
def test_every_indicator_fits_applies_and_exports(indicator: Indicator) -> None:
    data = draw(500, 4)
    fitted = Smart(indicator=indicator, steps=30).fit(data)
    signal = indicate(indicator, data.logits, fitted.base_temperature)
    np.testing.assert_allclose(signal.mean(axis=0), fitted.centre)
    np.testing.assert_allclose(signal.std(axis=0), fitted.spread)
    assert onnx.export(fitted)
    assert np.isfinite(fitted.apply([[0.0, -np.inf, 1.0, 2.0], [-np.inf] * 3 + [1.0]])).all()


@pytest.mark.parametrize("objective", get_args(ObjectiveName))
@pytest.mark.parametrize("k", [4, 150])
def test_every_objective_falls(objective: str, k: int) -> None:
    losses: list[float] = []
    recipe = Smart(objective=objective, steps=60)
    fitted = recipe.fit(draw(800, k), progress=lambda s, t, loss: losses.append(loss))
    assert len(losses) == 60
    assert fitted.fit_info["value"] <= losses[0]
    assert fitted.fit_info["objective"] == objective


def test_boundary_and_flat_logits_give_the_temperature_map() -> None:
    data = draw(300, 4)
    right = CalibrationSet(data.logits, data.logits.argmax(axis=1))
    with pytest.warns(BoundarySolution), pytest.warns(FellBack):
        assert isinstance(Smart().fit(right), TemperatureMap)
    with pytest.warns(FlatLogits), pytest.warns(FellBack):
        assert isinstance(Smart().fit(CalibrationSet(np.zeros((9, 3)), [0] * 9)), TemperatureMap)


def test_unknown_devices_are_refused_with_a_list_of_the_available_ones() -> None:
    for device, words in (
        ("cuda:99", "available on this machine"),
        ("abacus", "'cpu', 'cuda' or 'cuda:N'"),
    ):
        with pytest.raises(FitError, match=f"device must be {words}") as caught:
            Smart().fit(draw(50, 3), device=device)
        assert caught.value.code == "device_unavailable"


def test_a_fit_that_does_not_stay_finite_is_refused() -> None:
    with pytest.raises(FitError, match="smaller learning_rate") as caught:
        Smart(learning_rate=1.7e308, steps=5).fit(draw(200, 3))
    assert caught.value.code == "diverged"


def test_warnings_point_at_the_caller() -> None:
    with pytest.warns(FellBack), pytest.warns(FlatLogits) as caught:
        Smart().fit(CalibrationSet(np.zeros((9, 3)), [0] * 9))
    assert caught[0].filename == __file__


def test_a_fit_that_ends_worse_than_it_began_causes_a_warning() -> None:
    with pytest.warns(NotConverged, match="the objective rose from"):
        Smart(learning_rate=1e6, steps=20).fit(draw(500, 3))


@pytest.mark.parametrize("objective", ["charbonnier", "charbonnier_per_sample"])
def test_as_published_is_the_training_of_the_paper(objective: ObjectiveName) -> None:
    """The reference is Algorithm 1 by autograd, with torch's Adam in place of SGD.

    ``charbonnier_per_sample`` is its loss (Eq. 6); ``charbonnier`` is the binned form. Batches and
    start are those of the fit.
    """
    data = draw(1500, 5, dtype=np.float64)
    recipe = Smart(as_published=True, objective=objective, steps=4, seed=3)
    fitted = recipe.fit(data)
    rng = np.random.default_rng(3)
    start = torch.tensor(smart.published_start(rng, 1, 16))
    w1, b1, w2 = (one.clone().requires_grad_() for one in start[:-1].reshape(3, 16))
    b2 = start[-1].clone().requires_grad_()
    optimiser = torch.optim.Adam([w1, b1, w2, b2], lr=5e-3)
    z, y = torch.tensor(data.logits), torch.tensor(data.labels)
    two = z.topk(2).values
    margin = two[:, 0] - two[:, 1]
    m = (margin - margin.mean()) / margin.std(correction=0)
    centres = (torch.arange(15) + 0.5).double() / 15
    for _ in range(4):
        for rows in np.array_split(rng.permutation(1500), 2):
            hidden = torch.relu(m[rows, None] * w1 + b1)
            t = torch.nn.functional.softplus(hidden @ w2 + b2) + 0.1
            c = torch.softmax(z[rows] / t[:, None], dim=1).max(dim=1).values
            a = (z[rows].argmax(dim=1) == y[rows]).double()
            w = torch.softmax(-200 * (c[:, None] - centres) ** 2, dim=1)
            if objective == "charbonnier":
                residual, mass = (w * (a - c)[:, None]).sum(dim=0), w.sum(dim=0)
                loss = (residual**2 + (1e-3 * mass) ** 2).sqrt().sum() / len(rows)
            else:
                loss = (w * ((a[:, None] - centres) ** 2 + 1e-3**2).sqrt()).sum() / len(rows)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    assert fitted.base_temperature == 1
    np.testing.assert_allclose(fitted.w1[0], w1.detach(), atol=1e-4)
    np.testing.assert_allclose(fitted.w2, w2.detach(), atol=1e-4)
    assert fitted.b2 == pytest.approx(b2.item(), abs=1e-4)


def test_as_published_depends_on_the_scale_of_the_logits_and_ours_does_not() -> None:
    data, _ = two_regimes(3000, 0)
    small = CalibrationSet(data.logits / 200, data.labels)
    ours, published = (
        abs(ece(Smart(as_published=flag, steps=60).fit(small).apply(small.logits), data.labels))
        for flag in (False, True)
    )
    assert ours < 0.05 < 0.2 < published
