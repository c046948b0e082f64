"""The selective-risk loss (AU) compared with the equations of its paper, option by option."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from helpers.loss_batches import CLASSES, batch
from torch import Tensor

from calibrators.errors import ParameterError
from calibrators.losses.focal import WrongWayGradients
from calibrators.losses.registry import make_loss
from calibrators.losses.selective_risk import Score, safe_smoothing

NU, KAPPA, BINS = 0.4, 0.75, 64
RELEASED = {
    "weight_gradient": True,
    "threshold_gradient": True,
    "normalise": False,
    "accumulate": True,
    "second_softmax": True,
}


def paper(logits: Tensor, labels: Tensor, earlier: Tensor | None = None, **options: bool) -> Tensor:
    """Evaluate equations 19 to 23 with the largest probability as score, with `earlier` batches."""
    p = torch.softmax(logits, dim=1)
    s = (torch.softmax(p, dim=1) if options.get("second_softmax") else p).amax(dim=1)
    past = s.detach() if earlier is None else torch.cat([earlier, s.detach()])
    centres = (torch.floor(past * BINS) + 0.5) / BINS  # of the bin of each score

    def cdf(x: Tensor) -> Tensor:
        return torch.stack([torch.sigmoid((one - centres) / NU).mean() for one in x.reshape(-1)])

    tau = torch.quantile(s, KAPPA)
    fixed = tau if options.get("threshold_gradient") else tau.detach()
    beta = torch.where(s >= tau, -torch.log(1 - cdf(fixed)), -torch.log(1 - cdf(s)))
    if options.get("normalise", True):
        beta = beta / cdf(tau.detach())
    if not options.get("weight_gradient"):
        beta = beta.detach()
    return (beta * F.cross_entropy(logits, labels, reduction="none")).mean()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_gradient": True},
        {"weight_gradient": True, "threshold_gradient": True},
        {"normalise": False},
        {"second_softmax": True, "weight_gradient": True},
        RELEASED,
    ],
    ids=lambda options: " ".join(options) or "defaults",
)
def test_values_and_gradients_are_those_of_the_paper(options: dict[str, bool]) -> None:
    logits, labels, _ = batch()
    loss = make_loss("selective_risk", smoothing=NU, coverage=KAPPA, bins=BINS, **options)
    slopes = []
    for value in (loss, lambda z, y: paper(z, y, **options)):
        leaf = logits.clone().requires_grad_()
        value(leaf, labels).backward()
        slopes.append((value(logits, labels).detach(), leaf.grad))
    torch.testing.assert_close(*(value for value, _ in slopes))
    torch.testing.assert_close(*(slope for _, slope in slopes))


def test_scores_are_counted_over_the_training_batches_of_an_epoch() -> None:
    first, labels, _ = batch(seed=1)
    second, others, _ = batch(seed=2)
    loss = make_loss("selective_risk", smoothing=NU, bins=BINS, accumulate=True)
    leaf, other = first.requires_grad_(), second.requires_grad_()
    loss(leaf, labels)
    earlier = torch.softmax(first, dim=1).amax(dim=1).detach()
    with torch.no_grad():  # an evaluation is compared with the epoch and adds nothing
        for _ in range(2):
            torch.testing.assert_close(loss(second, others), paper(second, others, earlier))
    torch.testing.assert_close(loss(other, others), paper(second, others, earlier))
    assert int(loss.counts.sum()) == len(labels) + len(others)
    loss.next_epoch()
    torch.testing.assert_close(loss(other, others), paper(second, others))
    assert loss.half().counts.dtype == torch.int64


@pytest.mark.parametrize("score", ["msp", "margin"])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("classes", [2, 10, 100])
def test_no_right_row_is_pushed_away_from_its_label_at_the_safe_smoothing(
    score: Score, second: bool, classes: int
) -> None:
    safe = safe_smoothing(score, classes, second_softmax=second)
    assert safe is not None
    pushed = {}
    for smoothing in (min(safe, 1.0), safe / 10):
        count = 0
        for seed in range(10):
            generator = torch.Generator().manual_seed(seed)
            scale = 10 * torch.rand(500, 1, generator=generator, dtype=torch.float64)
            logits = scale * torch.randn(500, classes, generator=generator, dtype=torch.float64)
            labels = logits.argmax(dim=1)
            leaf = logits.requires_grad_()
            loss = make_loss(
                "selective_risk",
                score=score,
                smoothing=smoothing,
                second_softmax=second,
                weight_gradient=True,
                coverage=0.99,
                bins=1000,
            )
            loss.eval()(leaf, labels).backward()
            assert leaf.grad is not None
            count += int((leaf.grad.gather(1, labels[:, None]) > 0).sum())
        pushed[smoothing] = count
    at_safe, below = pushed.values()
    assert at_safe == 0
    assert below > 0


def test_the_first_training_batch_warns_of_a_smoothing_below_the_safe_one() -> None:
    logits, labels, _ = batch()
    leaf = logits.requires_grad_()
    loss = make_loss("selective_risk", weight_gradient=True)
    loss.eval()(leaf, labels)
    with pytest.warns(WrongWayGradients, match=r"smoothing 0\.1, .* at least 0\.368 \(score msp"):
        loss.train()(leaf, labels)
    loss(leaf, labels)  # a warning would be an error here
    with pytest.warns(WrongWayGradients, match=r"at least 0\.736"):
        make_loss("selective_risk", weight_gradient=True, score="margin")(leaf, labels)
    least = 1 / (math.e + CLASSES - 1)
    with pytest.warns(WrongWayGradients, match=rf"at least {least:.3f}"):
        make_loss("selective_risk", **RELEASED)(leaf, labels)
    for quiet in ({"smoothing": 1 / math.e}, {"score": "neg_entropy"}):
        make_loss("selective_risk", weight_gradient=True, **quiet)(leaf, labels)
    make_loss("selective_risk", smoothing=0.01)(leaf, labels)


def test_a_gradient_of_the_threshold_without_one_of_the_weights_is_refused() -> None:
    with pytest.raises(ParameterError, match="threshold_gradient needs weight_gradient=True"):
        make_loss("selective_risk", threshold_gradient=True)
