"""AdaFocalLoss: its formula in float64, extreme values, and checkpoints."""

import copy
import io
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from calibrators.adafocal import AdaFocalState, BinStatistics, Settings
from calibrators.errors import DataError, ParameterError
from calibrators.losses.adafocal import AdaFocalLoss

SIGNED = [-2.0, -0.2, 0.0, 0.2, 1.0, 3.5, 20.0]


def steered(gammas: list[float] = SIGNED, **settings) -> AdaFocalState:
    """Return a state with these gammas, in bins of equal width."""
    bins = len(gammas)
    chosen = Settings(bins=bins, **settings)
    return AdaFocalState(chosen, 1, np.arange(bins + 1) / bins, gammas, np.linspace(0.1, 0.9, bins))


def batch(n: int = 64, k: int = 10, scale: float = 3.0, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, k, generator=generator, dtype=torch.float64)
    return logits, torch.randint(k, (n,), generator=generator)


def formula(logits: torch.Tensor, labels: torch.Tensor, state: AdaFocalState) -> list[float]:
    """Return the loss of each row by the paper's formula."""
    found = []
    for row, label in zip(logits.double().numpy(), labels.tolist(), strict=True):
        p = float(np.exp(row[label] - row.max()) / np.exp(row - row.max()).sum())
        place = min(sum(p >= edge for edge in state.edges[1:-1]), state.settings.bins - 1)
        gamma = state.gammas[place]
        strength = (1 - p) ** gamma if gamma >= 0 else (1 + p) ** -gamma
        found.append(-strength * np.log(p))
    return found


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_value_is_that_of_the_formula(scale):
    logits, labels = batch(scale=scale)
    expected = formula(logits, labels, steered())
    each = AdaFocalLoss(steered(), reduction="none")(logits, labels)
    assert each.tolist() == pytest.approx(expected, rel=1e-12)
    assert AdaFocalLoss(steered(), reduction="sum")(logits, labels).item() == pytest.approx(
        sum(expected)
    )
    assert AdaFocalLoss(steered())(logits, labels).item() == pytest.approx(np.mean(expected))
    assert AdaFocalLoss(steered())(logits.float(), labels).item() == pytest.approx(
        np.mean(expected), rel=1e-5
    )


@pytest.mark.parametrize("gamma", [-2.0, -0.2, 0.2, 1.0, 5.0, 20.0])
def test_gradient_is_that_of_finite_differences(gamma):
    logits, labels = batch(n=6, k=4)
    loss = AdaFocalLoss(steered([gamma]))
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), (logits,), atol=1e-7)


def test_gamma_and_bin_carry_no_gradient():
    """Inside each bin the gradient is that of a loss with this gamma everywhere."""
    logits, labels = batch(n=40)
    p = torch.softmax(logits, dim=1)[torch.arange(40), labels]
    place = torch.bucketize(p, torch.tensor(steered().edges[1:-1]), right=True)
    whole = _gradient(AdaFocalLoss(steered(), reduction="sum"), logits, labels)
    for number in place.unique().tolist():
        rows = place == number
        alone = AdaFocalLoss(steered([SIGNED[number]]), reduction="sum")
        assert torch.allclose(whole[rows], _gradient(alone, logits[rows], labels[rows]))


def _gradient(loss: AdaFocalLoss, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    given = logits.detach().clone().requires_grad_()
    loss(given, labels).backward()
    assert given.grad is not None
    return given.grad


def test_gamma_zero_is_cross_entropy():
    logits, labels = batch()
    loss = AdaFocalLoss(steered([0.0, 0.0]))
    assert loss(logits, labels).item() == F.cross_entropy(logits, labels).item()
    given = logits.clone().requires_grad_()
    F.cross_entropy(given, labels).backward()
    assert torch.allclose(_gradient(loss, logits, labels), given.grad, rtol=1e-12, atol=0)


@pytest.mark.parametrize("gamma", SIGNED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [20.0, 100.0, 1e4])
def test_saturated_logits_give_finite_losses_and_gradients(gamma, dtype, size):
    logits = torch.zeros(3, 5, dtype=dtype)
    logits[:2, 0] = size
    logits[2, 3] = -size
    labels = torch.tensor([0, 1, 3])
    loss = AdaFocalLoss(steered([gamma]), reduction="none")
    values = loss(logits, labels).double()
    assert torch.isfinite(values).all()
    assert values[0] <= 4 * 5 * np.exp(-20)
    assert values[1:].tolist() == pytest.approx([size, size + np.log(4)], rel=0.01)
    gradient = _gradient(AdaFocalLoss(steered([gamma]), reduction="sum"), logits, labels)
    assert torch.isfinite(gradient).all()
    assert gradient[0].abs().max() <= 1e-6
    assert gradient[1, 1].item() == pytest.approx(-1.0, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_worked_out_in_float32(dtype):
    logits, labels = batch(k=100)
    halved = logits.to(dtype)
    value = AdaFocalLoss(steered())(halved, labels)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(AdaFocalLoss(steered())(halved.float(), labels).item())
    assert _gradient(AdaFocalLoss(steered()), halved, labels).dtype == dtype


def test_under_autocast():
    torch.manual_seed(0)
    layer = torch.nn.Linear(20, 10)
    inputs, labels = torch.randn(32, 20), torch.randint(10, (32,))
    loss = AdaFocalLoss(steered())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = layer(inputs)
        value = loss(logits, labels)
    assert (logits.dtype, value.dtype) == (torch.bfloat16, torch.float32)
    value.backward()
    assert torch.isfinite(layer.weight.grad).all()
    assert value.item() == pytest.approx(loss(layer(inputs), labels).item(), rel=0.02)


@pytest.mark.parametrize("ignored", [-100, 3])
def test_ignored_labels_do_not_count(ignored):
    logits, labels = batch()
    labels = labels.where(labels != 3, torch.tensor(4))
    kept = torch.arange(64) % 3 != 0
    some = labels.where(kept, torch.tensor(ignored))
    for reduction in ("mean", "sum"):
        loss = AdaFocalLoss(steered(), reduction=reduction, ignore_index=ignored)
        assert loss(logits, some).item() == pytest.approx(loss(logits[kept], labels[kept]).item())
    gradient = _gradient(loss, logits, some)
    assert (gradient[~kept] == 0).all()
    each = AdaFocalLoss(steered(), reduction="none", ignore_index=ignored)(logits, some)
    assert (each[~kept] == 0).all()


@pytest.mark.parametrize("gammas", [[1.0], [-2.0], SIGNED])
def test_all_ignored_is_zero_with_a_zero_gradient(gammas):
    logits, labels = batch(n=5)
    loss = AdaFocalLoss(steered(gammas))
    nothing = torch.full_like(labels, -100)
    assert loss(logits, nothing).item() == 0
    assert (_gradient(loss, logits, nothing) == 0).all()


def test_a_batch_of_one():
    logits, labels = batch(n=1)
    expected = formula(logits, labels, steered())
    assert AdaFocalLoss(steered())(logits, labels).item() == pytest.approx(expected[0])


def test_segmentation_is_the_same_as_a_row_for_each_pixel():
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(2, 5, 4, 3, generator=generator)
    labels = torch.randint(5, (2, 4, 3), generator=generator)
    labels[0, 0, 0] = -100
    flat = logits.permute(0, 2, 3, 1).reshape(-1, 5), labels.reshape(-1)
    assert AdaFocalLoss(steered())(logits, labels).item() == pytest.approx(
        AdaFocalLoss(steered())(*flat).item()
    )
    each = AdaFocalLoss(steered(), reduction="none")
    assert torch.equal(each(logits, labels).flatten(), each(*flat))


def test_a_checkpoint_resumes_the_state():
    loss = AdaFocalLoss(rate=3.0)
    rng = np.random.default_rng(0)
    for _ in range(3):
        seen = BinStatistics.from_confidences(rng.uniform(0.3, 1, 500), rng.random(500) < 0.6)
        loss.state = loss.state.update(seen)
    model = torch.nn.ModuleDict({"loss": loss})
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    resumed = torch.nn.ModuleDict({"loss": AdaFocalLoss()})
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed["loss"].state == loss.state
    logits, labels = batch()
    assert resumed["loss"](logits, labels).item() == loss(logits, labels).item()


def test_a_new_state_applies_at_once_and_copies_are_independent():
    logits, labels = batch()
    loss = AdaFocalLoss(steered([1.0]))
    before = loss(logits, labels).item()
    twin = copy.deepcopy(loss)
    loss.state = steered([5.0])
    assert loss(logits, labels).item() != before
    assert twin(logits, labels).item() == before
    assert repr(loss) == "AdaFocalLoss(bins=1, step=1)"


def test_probabilities_on_and_beyond_the_edges_fall_into_the_outer_bins():
    edges = [0.0, 0.5, 1.0, 1.0, 1.0]  # an overconfident network: edges tied at 1
    state = AdaFocalState(Settings(bins=4), 1, edges, [1.0, 2.0, 3.0, 4.0], [0.5] * 4)
    loss = AdaFocalLoss(state)
    p = torch.tensor([0.0, 0.499, 0.5, 0.999, 1.0], dtype=torch.float64)
    assert loss._gammas(p).tolist() == [1.0, 1.0, 2.0, 2.0, 4.0]


def test_calfocal_takes_gammas_from_the_bins_and_per_sample_from_p():
    logits, labels = batch(n=30)
    p = torch.softmax(logits, dim=1)[torch.arange(30), labels].numpy()
    state = steered([0.5, 2.0], rate=4.0, rule="calfocal")
    each = AdaFocalLoss(state, reduction="none")(logits, labels)
    gamma = np.where(p < 0.5, 0.5, 2.0)
    assert each.tolist() == pytest.approx((-((1 - p) ** gamma) * np.log(p)).tolist())
    state = steered([0.5, 2.0], rate=4.0, rule="calfocal_per_sample")
    each = AdaFocalLoss(state, reduction="none")(logits, labels)
    gamma = np.exp(4 * (p - np.where(p < 0.5, 0.1, 0.9)))
    assert each.tolist() == pytest.approx((-((1 - p) ** gamma) * np.log(p)).tolist())
    start = AdaFocalLoss(rule="calfocal_per_sample", reduction="none")(logits, labels)
    assert start.tolist() == pytest.approx((-(1 - p) * np.log(p)).tolist())


@pytest.mark.parametrize("rate", [1.0, 10.0, 100.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_calfocal_is_the_formula_of_the_paper_however_large_its_gammas(rate, dtype):
    """Eq. 2, -(1 - p)^gamma log p for gamma = exp(rate (p - A)), with its derivative by log p."""
    state = steered([1.0, 1.0], rate=rate, rule="calfocal_per_sample")
    surprise = np.logspace(-3, 1.4, 60)
    leaf = torch.tensor(np.stack([-surprise, np.log(-np.expm1(-surprise))], axis=1), dtype=dtype)
    leaf.requires_grad_()
    each = AdaFocalLoss(state, reduction="none")(leaf, torch.zeros(60, dtype=torch.long))
    each.sum().backward()
    for number, size in enumerate(surprise.tolist()):
        p = math.exp(-size)
        accuracy = 0.1 if p < 0.5 else 0.9
        gamma = math.exp(min(rate * (p - accuracy), math.log(1e18)))
        power = math.exp(gamma * math.log1p(-p))
        within = 3e-3 if dtype == torch.float32 else 1e-7  # rate times the rounding of p
        assert each[number].item() == pytest.approx(power * size, rel=within, abs=1e-30)
        # d loss / d surprise, times d surprise / d logit of the label
        slope = power * (1 + gamma * p * size / (1 - p)) * (p - 1)
        assert leaf.grad[number, 0].item() == pytest.approx(slope, rel=within, abs=1e-30)


def test_wrong_use_is_named():
    logits, _ = batch()
    with pytest.raises(ParameterError, match=r"reduction must be one of .* got 'average'"):
        AdaFocalLoss(reduction="average")
    with pytest.raises(ParameterError, match="a state or settings, not both"):
        AdaFocalLoss(steered(), rate=2.0)
    with pytest.raises(ParameterError, match="rate must be greater than 0"):
        AdaFocalLoss(rate=-1.0)
    with pytest.raises(DataError, match=r"labels must be class indices, got torch\.float64"):
        AdaFocalLoss()(logits, torch.softmax(logits, dim=1))
    with pytest.raises(ParameterError, match="state must be an AdaFocalState, got dict"):
        AdaFocalLoss().state = steered().to_dict()
