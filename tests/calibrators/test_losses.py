"""Each loss compared with an independent implementation of its formula."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers.loss_batches import CLASSES, ROWS, batch, every_variant, fresh, made
from torch import Tensor

from calibrators.errors import DataError, ParameterError
from calibrators.losses.base import Loss, argmax
from calibrators.losses.contrastive import contrastive
from calibrators.losses.correctness_ranking import CorrectnessRankingLoss
from calibrators.losses.focal import WrongWayGradients
from calibrators.losses.online_label_smoothing import OnlineLabelSmoothingLoss
from calibrators.losses.refcal import refinement
from calibrators.losses.registry import make_loss
from calibrators.losses.seca import AloneInClass
from calibrators.losses.selective_risk import confidence_score

# losses with stop-gradient terms, whose values are frozen at `at`
SMOOTH = 1e-6


def frozen(
    name: str, loss: Loss, at: Tensor, labels: Tensor, classes: int = CLASSES
) -> Callable[..., Tensor]:
    """Return the loss as a function whose stop-gradient terms keep their values at `at`."""
    if name.endswith("seca"):
        p = torch.softmax(at, dim=1)
        means = torch.stack([p[labels == y].mean(dim=0) for y in labels])
        target = F.one_hot(labels, classes) + means

        def seca(logits: Tensor, embeddings: Tensor | None = None, **_: Tensor) -> Tensor:
            found = -(target * torch.log_softmax(logits, dim=1)).sum(dim=1).mean()
            if name == "seca" or embeddings is None:
                return found
            return found + contrastive(embeddings, labels, 0.1).mean()

        return seca
    if name.endswith("gradient"):
        return risk_with_moving_weights(loss, at, labels)
    if name.startswith(("selective_risk", "aurc")):
        fixed = loss.losses(at, labels) / F.cross_entropy(at, labels, reduction="none")
        return lambda logits, **_: (
            fixed * F.cross_entropy(logits, labels, reduction="none")
        ).mean()
    return lambda logits, **more: loss(logits, labels, **more)


def risk_with_moving_weights(loss: Loss, at: Tensor, labels: Tensor) -> Callable[..., Tensor]:
    """Return the selective risk with fixed counts, tau and C and variable scores of the rows."""
    low = -math.log(CLASSES) if loss.score == "neg_entropy" else 0.0
    wide = (-low or 1.0) / loss.bins
    scores = confidence_score(torch.log_softmax(at, dim=1), loss.score)
    places = low + (torch.div(scores - low, wide, rounding_mode="floor") + 0.5) * wide
    tau = torch.quantile(scores, loss.coverage)

    def share(values: Tensor) -> Tensor:
        return torch.sigmoid((values[..., None] - places) / loss.smoothing).mean(dim=-1)

    def value(logits: Tensor, **_: Tensor) -> Tensor:
        log_p = torch.log_softmax(logits, dim=1)
        below = share(torch.minimum(confidence_score(log_p, loss.score), tau))
        weights = -torch.log(1 - below) / share(tau)
        return (weights * F.nll_loss(log_p, labels, reduction="none")).mean()

    return value


def test_gradients_of_embeddings_against_finite_differences() -> None:
    logits, labels, more = batch(seed=3)
    direction = torch.randn(more["embeddings"].shape, generator=torch.Generator().manual_seed(4))
    for hard_pairs in (False, True):
        loss = made("refcal", hard_pairs=hard_pairs)
        leaf = more["embeddings"].clone().requires_grad_()
        loss(logits, labels, embeddings=leaf).backward()
        ahead, behind = (
            loss(logits, labels, embeddings=more["embeddings"] + step * direction.double())
            for step in (SMOOTH, -SMOOTH)
        )
        torch.testing.assert_close(
            (ahead - behind) / (2 * SMOOTH), (leaf.grad * direction).sum(), rtol=1e-5, atol=1e-7
        )


@every_variant
def test_gradients_against_finite_differences(name: str) -> None:
    logits, labels, more = batch(seed=3)
    loss = made(name)
    leaf = logits.clone().requires_grad_()
    loss(leaf, labels, **more).backward()
    value = frozen(name, loss, logits, labels)
    direction = torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(4)).double()
    for _ in range(3):
        ahead = value(logits + SMOOTH * direction, **more)
        behind = value(logits - SMOOTH * direction, **more)
        slope = (leaf.grad * direction).sum()
        torch.testing.assert_close((ahead - behind) / (2 * SMOOTH), slope, rtol=1e-5, atol=1e-7)
        direction = direction.roll(1, dims=0)


@pytest.mark.parametrize("columns", [2, 127, 128, 130, 192, 1000])
def test_the_largest_column_is_the_one_torch_finds(columns: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    distinct = torch.rand(200, columns, generator=generator).argsort(dim=1).float()
    assert torch.equal(argmax(distinct), distinct.argmax(dim=1))
    rounded = (3 * torch.rand(200, columns, generator=generator)).round()
    first = (rounded == rounded.amax(dim=1, keepdim=True)).float().argmax(dim=1)
    assert torch.equal(argmax(rounded), first)


@pytest.mark.parametrize("name", ["seca", "dual_focal"])
def test_gradients_of_many_classes_against_finite_differences(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(6, 150, generator=generator).double()
    labels = torch.tensor([3, 149, 3, 70, 128, 149])
    leaf = logits.clone().requires_grad_()
    loss = made(name)
    loss(leaf, labels).backward()
    direction = torch.randn(6, 150, generator=generator).double()
    value = frozen(name, loss, logits, labels, classes=150)
    change = value(logits + SMOOTH * direction) - value(logits - SMOOTH * direction)
    torch.testing.assert_close(
        change / (2 * SMOOTH), (leaf.grad * direction).sum(), rtol=1e-5, atol=1e-7
    )


def test_seca_takes_logits_that_rule_classes_out() -> None:
    logits = torch.tensor([[2.0, 0.0, -torch.inf], [1.0, 0.5, -torch.inf]], requires_grad=True)
    loss = made("seca")(logits, torch.tensor([0, 1]))
    loss.backward()
    without = made("seca")(logits[:, :2], torch.tensor([0, 1]))
    torch.testing.assert_close(loss, without)
    assert torch.isfinite(logits.grad).all()


def test_seca_warns_once_if_most_samples_are_alone_in_their_class() -> None:
    """A lone sample of a class has its own prediction as mean; its gradient is p - onehot."""
    logits, labels = torch.randn(20, 100), torch.arange(20)
    loss = fresh("seca", reduction="sum")
    leaf = logits.clone().requires_grad_()
    with pytest.warns(AloneInClass, match="20 of 20 samples are the only sample of their class"):
        loss(leaf, labels).backward()
    expected = torch.softmax(logits, dim=1) - torch.nn.functional.one_hot(labels, 100)
    torch.testing.assert_close(leaf.grad, expected)
    loss(leaf, labels)  # a warning would be an error here
    fresh("seca")(logits, labels % 5)
    made("seca")(logits, labels)


def test_seca_has_the_gradient_of_its_formula() -> None:
    logits, labels, _ = batch()
    leaf = logits.clone().requires_grad_()
    made("seca", reduction="sum")(leaf, labels).backward()
    p = torch.softmax(logits, dim=1)
    means = torch.stack([p[labels == y].mean(dim=0) for y in labels])
    expected = 2 * p - (F.one_hot(labels, CLASSES) + means)
    torch.testing.assert_close(leaf.grad, expected, rtol=0, atol=1e-6)


def test_seca_is_cross_entropy_plus_divergence_from_and_entropy_of_the_means() -> None:
    logits, labels, _ = batch()
    log_p = torch.log_softmax(logits, dim=1)
    means = torch.stack([log_p.exp()[labels == y].mean(dim=0) for y in labels])
    divergence = (means * (means.log() - log_p)).sum(dim=1)
    entropy = -(means * means.log()).sum(dim=1)
    expected = (F.cross_entropy(logits, labels, reduction="none") + divergence + entropy).mean()
    torch.testing.assert_close(made("seca")(logits, labels), expected)


@pytest.mark.parametrize("score", ["msp", "margin", "neg_entropy"])
def test_selective_risk_with_fine_bins_and_no_smoothing(score: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2000, CLASSES, generator=generator).double()
    labels = torch.randint(0, CLASSES, (2000,), generator=generator)
    found = made("selective_risk", score=score, smoothing=1e-5, bins=10_000)(logits, labels)
    s = confidence_score(torch.log_softmax(logits, dim=1), score)
    tau = torch.quantile(s, 0.75)
    share = (s[None, :] < torch.minimum(s, tau)[:, None]).double().mean(dim=1)
    top = (s < tau).double().mean()
    weights = -torch.log(1 - share) / top
    expected = (weights * F.cross_entropy(logits, labels, reduction="none")).mean()
    torch.testing.assert_close(found, expected, rtol=5e-3, atol=0)


def test_selective_risk_weights_carry_a_gradient_only_below_the_quantile() -> None:
    logits, labels, _ = batch()
    leaf = logits.clone().requires_grad_()
    loss = made("selective_risk", weight_gradient=True, reduction="sum")
    loss(leaf, labels).backward()
    plain = logits.clone().requires_grad_()
    made("selective_risk", reduction="sum")(plain, labels).backward()
    s = confidence_score(torch.log_softmax(logits, dim=1), "msp")
    below = s < torch.quantile(s, 0.75)
    differs = (leaf.grad - plain.grad).abs().amax(dim=1) > 1e-9
    assert torch.equal(differs, below)


def test_selective_risk_warms_up_on_cross_entropy() -> None:
    logits, labels, _ = batch()
    loss = make_loss("selective_risk", warm_up=2, weight_gradient=True, smoothing=0.4)
    found = [loss(logits, labels) for _ in range(3)]
    plain = F.cross_entropy(logits, labels)
    torch.testing.assert_close(found[0], plain)
    torch.testing.assert_close(found[1], plain)
    assert not torch.isclose(found[2], plain)


def test_aurc_gives_tied_rows_their_mean_rank() -> None:
    logits = torch.tensor([[3.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.5, 0.0]])
    found = made("aurc", reduction="none")(logits, torch.tensor([0, 0, 0, 0]))
    hard = F.cross_entropy(logits, torch.tensor([0, 0, 0, 0]), reduction="none")
    ranks = torch.tensor([4.0, 2.5, 2.5, 1.0])
    torch.testing.assert_close(found, -torch.log(1 - ranks / 5) * hard)


@pytest.mark.parametrize("classes", [7, 50])
def test_selective_risk_learns_from_flat_logits(classes: int) -> None:
    leaf = torch.zeros(16, classes, requires_grad=True)
    loss = made("selective_risk", score="neg_entropy")(leaf, torch.arange(16) % classes)
    loss.backward()
    assert loss > 0.1
    assert leaf.grad.abs().max() > 1e-3


def test_aurc_against_its_ranks() -> None:
    logits, labels, _ = batch()
    s = confidence_score(torch.log_softmax(logits, dim=1), "msp").tolist()
    hard = F.cross_entropy(logits, labels, reduction="none").tolist()
    total = 0.0
    for mine, risk in zip(s, hard, strict=True):
        rank = sum(other <= mine for other in s)
        total += -math.log(1 - rank / (ROWS + 1)) * risk
    assert made("aurc")(logits, labels).item() == pytest.approx(total / ROWS)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.1])
def test_the_contrastive_loss_bounds_the_refinement_loss(temperature: float) -> None:
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        embeddings = torch.randn(30, 4, generator=generator).double()
        labels = torch.randint(0, 3, (30,), generator=generator)
        upper = contrastive(embeddings, labels, temperature)
        assert (upper >= refinement(embeddings, labels) - 1e-12).all()


def test_the_refinement_loss_against_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    e = F.normalize(torch.randn(12, 3, generator=generator).double(), dim=1)
    labels = torch.randint(0, 3, (12,), generator=generator)
    found = refinement(e, labels)
    for i in range(12):
        far = [((e[i] - e[j]) ** 2).sum().item() / 2 for j in range(12)]
        same = [far[j] for j in range(12) if j != i and labels[j] == labels[i]]
        other = [far[j] for j in range(12) if labels[j] != labels[i]]
        expected = min(same) - min(other) if same and other else 0.0
        assert found[i].item() == pytest.approx(expected, abs=1e-12)


def test_refcal_adds_the_contrastive_term_to_any_loss() -> None:
    logits, labels, more = batch()
    found = made("refcal", loss="focal", loss_params={"gamma": 2.0}, weight=0.5)(
        logits, labels, **more
    )
    term = contrastive(more["embeddings"], labels, 0.1).mean()
    torch.testing.assert_close(found, made("focal", gamma=2.0)(logits, labels) + 0.5 * term)


def test_focal_and_flsd_against_their_formulas() -> None:
    logits, labels, _ = batch()
    p = torch.softmax(logits, dim=1).gather(1, labels[:, None])[:, 0]
    torch.testing.assert_close(made("focal")(logits, labels), (-((1 - p) ** 3) * p.log()).mean())
    gamma = torch.tensor([5.0 if one < 0.2 else 3.0 for one in p])
    torch.testing.assert_close(
        made("flsd_53")(logits, labels), (-((1 - p) ** gamma) * p.log()).mean()
    )
    torch.testing.assert_close(
        made("inverse_focal")(logits, labels), (-((1 + p) ** 2) * p.log()).mean()
    )


def test_a_gamma_that_pushes_the_wrong_way_causes_a_warning() -> None:
    with pytest.warns(WrongWayGradients, match="use a gamma below 3.591"):
        made("inverse_focal", gamma=4.0)
    with pytest.warns(WrongWayGradients):
        steep = made("inverse_focal", gamma=4.0)
    for loss, is_wrong in ((steep, True), (made("inverse_focal", gamma=3.59), False)):
        logits = torch.stack([torch.linspace(-6, 6, 400), torch.zeros(400)], dim=1)
        leaf = logits.double().requires_grad_()
        loss(leaf, torch.zeros(400, dtype=torch.long)).backward()
        assert bool((leaf.grad[:, 0] > 0).any()) is is_wrong  # the loss increases with the logit


@pytest.mark.parametrize("as_published", [False, True])
def test_dual_focal_against_its_formula(as_published: bool) -> None:
    logits, labels, _ = batch()
    total = 0.0
    for row, y in zip(torch.softmax(logits, dim=1).tolist(), labels.tolist(), strict=True):
        others = [one for c, one in enumerate(row) if c != y]
        if as_published:
            others = [one for one in others if one < row[y]]
        rival = max(others, default=0.0)
        total += -((1 - row[y] + rival) ** 5) * math.log(row[y])
    found = made("dual_focal", as_published=as_published)(logits, labels)
    assert found.item() == pytest.approx(total / ROWS)


def test_mmce_against_a_loop() -> None:
    logits, labels, _ = batch()
    c, predicted = torch.softmax(logits, dim=1).max(dim=1)
    a = (predicted == labels).double()
    total = 0.0
    for i in range(ROWS):
        for j in range(ROWS):
            kernel = math.exp(-abs(c[i] - c[j]) / 0.4)
            total += (a[i] - c[i]).item() * (a[j] - c[j]).item() * kernel
    expected = F.cross_entropy(logits, labels).item() + 4 * math.sqrt(total) / ROWS
    assert made("mmce")(logits, labels).item() == pytest.approx(expected)


def test_dca_mdca_and_brier_against_their_formulas() -> None:
    logits, labels, _ = batch()
    p, one_hot = torch.softmax(logits, dim=1), F.one_hot(labels, CLASSES).double()
    hard = F.cross_entropy(logits, labels)
    accuracy = (p.argmax(dim=1) == labels).double().mean()
    torch.testing.assert_close(
        made("dca")(logits, labels), hard + (p.amax(dim=1).mean() - accuracy).abs()
    )
    term = (p.mean(dim=0) - one_hot.mean(dim=0)).abs().mean()
    torch.testing.assert_close(
        made("mdca")(logits, labels), made("focal", gamma=1.0)(logits, labels) + term
    )
    torch.testing.assert_close(
        made("brier")(logits, labels), ((p - one_hot) ** 2).sum(dim=1).mean()
    )


def test_kde_cross_entropy_against_torch_dirichlet() -> None:
    logits, labels, _ = batch()
    p, h = torch.softmax(logits, dim=1), 0.1
    total = 0.0
    for j in range(ROWS):
        others = [i for i in range(ROWS) if i != j]
        density = torch.stack(
            [torch.distributions.Dirichlet(p[i] / h + 1).log_prob(p[j]).exp() for i in others]
        )
        expected = (density[:, None] * F.one_hot(labels[others], CLASSES)).sum(0) / density.sum()
        total += (expected - p[j]).abs().sum().item()
    hard = F.cross_entropy(logits, labels).item()
    found = made("kde_cross_entropy")(logits, labels).item()
    assert found == pytest.approx(hard + 0.3 * total / ROWS)


def test_online_label_smoothing_learns_from_the_epoch_before() -> None:
    logits, labels, _ = batch(dtype=torch.float32)
    loss = OnlineLabelSmoothingLoss(CLASSES)
    loss(logits, labels)
    loss.next_epoch()
    p = torch.softmax(logits, dim=1)
    right = p.argmax(dim=1) == labels
    for y in range(CLASSES):
        mine = p[right & (labels == y)]
        expected = mine.mean(dim=0) if len(mine) else torch.full((CLASSES,), 1 / CLASSES)
        torch.testing.assert_close(loss.soft[y].data, expected)
    assert not loss.seen.any()


def test_validation_teaches_a_loss_nothing() -> None:
    logits, labels, more = batch(dtype=torch.float32)
    for name in ("online_label_smoothing", "correctness_ranking"):
        loss = fresh(name)
        before = {key: value.clone() for key, value in loss.state_dict().items()}
        with torch.no_grad():
            loss(logits, labels, **more)
        assert all(torch.equal(value, before[key]) for key, value in loss.state_dict().items())
        loss(logits, labels, **more)
        assert any(not torch.equal(value, before[key]) for key, value in loss.state_dict().items())


def test_soft_labels_never_go_to_half_precision() -> None:
    loss = fresh("online_label_smoothing").half()
    assert (loss.soft.dtype, loss.seen.dtype) == (torch.float32, torch.float32)


def test_a_label_that_is_ruled_out_has_a_gradient_as_in_cross_entropy() -> None:
    logits = torch.tensor([[0.0, -torch.inf]], requires_grad=True)
    made("focal")(logits, torch.tensor([1])).backward()
    assert torch.isfinite(logits.grad).all()


def test_aurc_of_very_many_rows_is_finite() -> None:
    logits = torch.zeros(2**24, 2)
    logits[:, 0] = torch.linspace(0, 1, 2**24)
    assert torch.isfinite(made("aurc")(logits, torch.zeros(2**24, dtype=torch.uint8)))


@pytest.mark.parametrize(
    ("name", "params", "match"),
    [
        ("online_label_smoothing", {}, "online_label_smoothing needs classes="),
        (None, {}, "there is no loss None"),
        ("refcal", {"loss": torch.nn.Identity()}, "loss must be a plain value"),
        ("refcal", {"loss": "refcal"}, "cannot be its own inner loss"),
        ("refcal", {"loss_params": {"reduction": "sum"}}, "set reduction on refcal, not on"),
        ("calfocal", {"rule": "adafocal"}, "has no parameter 'rule'"),
    ],
)
def test_invalid_losses_are_refused(name: object, params: dict[str, object], match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        make_loss(name, **params)


def test_correctness_ranking_without_an_index_is_cross_entropy_in_evaluations_only() -> None:
    logits, labels, _ = batch()
    loss = fresh("correctness_ranking")
    with pytest.raises(DataError, match=r"call loss\(logits, labels, index=...\)"):
        loss(logits, labels)
    torch.testing.assert_close(loss.eval()(logits, labels), F.cross_entropy(logits, labels))


def test_correctness_ranking_counts_correct_predictions() -> None:
    logits, labels, more = batch(dtype=torch.float32)
    loss = CorrectnessRankingLoss(samples=200)
    for _ in range(3):
        loss(logits, labels, index=more["index"])
        loss.next_epoch()
    right = (logits.argmax(dim=1) == labels).int()
    assert torch.equal(loss.right[:ROWS].data, 3 * right)
    assert loss.epochs == 3
    s, h = torch.softmax(logits, dim=1).amax(dim=1), right.float()
    total = 0.0
    for i in range(ROWS):
        j = (i + 1) % ROWS
        sign = (h[i] > h[j]).int() - (h[i] < h[j]).int()
        total += max(0.0, (abs(h[i] - h[j]) - sign * (s[i] - s[j])).item())
    expected = F.cross_entropy(logits, labels).item() + total / ROWS
    assert loss.eval()(logits, labels, index=more["index"]).item() == pytest.approx(expected)
