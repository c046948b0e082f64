"""RefCal's two stages: the supervised contrastive loss of two views, then a frozen encoder."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrators.errors import DataError, ParameterError
from calibrators.losses import SupervisedContrastive, make_loss, projection_head

ROWS, CLASSES = 10, 3


def views(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randn(2, ROWS, 4, generator=generator, dtype=torch.float64)
    return first, second, torch.randint(0, CLASSES, (ROWS,), generator=generator)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_it_is_equation_2_of_supervised_contrastive_learning(temperature: float) -> None:
    first, second, labels = views()
    z = [F.normalize(row, dim=0) for row in (*first, *second)]
    y = labels.tolist() * 2
    total = 0.0
    for i in range(2 * ROWS):
        others = [a for a in range(2 * ROWS) if a != i]
        below = math.log(sum(math.exp(z[i] @ z[a] / temperature) for a in others))
        positives = [p for p in others if y[p] == y[i]]
        total -= sum((z[i] @ z[p]).item() / temperature - below for p in positives) / len(positives)
    found = SupervisedContrastive(temperature)(first, second, labels)
    assert found.item() == pytest.approx(total / (2 * ROWS))


def test_views_and_lengths_do_not_matter() -> None:
    first, second, labels = views()
    loss = SupervisedContrastive()
    found = loss(first, second, labels)
    torch.testing.assert_close(loss(second, 3 * first, labels), found)
    half = loss(first.half(), second.half(), labels)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half.double(), found, rtol=1e-2, atol=0)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(loss(first, second, labels), found)


def test_it_pulls_the_views_of_a_class_together() -> None:
    first, second, labels = (one.detach() for one in views())
    leaves = [first.requires_grad_(), second.requires_grad_()]
    optimizer = torch.optim.SGD(leaves, lr=1.0)
    for _ in range(300):
        optimizer.zero_grad()
        SupervisedContrastive()(*leaves, labels).backward()
        optimizer.step()
    unit = F.normalize(torch.cat(leaves), dim=1).detach()
    alike, same = unit @ unit.T, labels.repeat(2)[:, None] == labels.repeat(2)
    assert alike[same].min() > 0.9
    assert alike[~same].max() < 0.5


def test_two_stages_learn_a_task() -> None:
    """Rings, which a linear head on the inputs cannot separate."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    labels = torch.randint(0, CLASSES, (300,), generator=generator)
    angle = 2 * math.pi * torch.rand(300, generator=generator)
    inputs = (1.0 + labels)[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)
    encoder = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    head, loss = projection_head(32), SupervisedContrastive()
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=5e-3)
    for _ in range(150):
        two = torch.cat([inputs, inputs]) + 0.05 * torch.randn(600, 2, generator=generator)
        optimizer.zero_grad()
        loss(*head(encoder(two)).chunk(2), labels).backward()
        optimizer.step()
    encoder.eval().requires_grad_(False)
    before = [one.clone() for one in encoder.parameters()]
    classifier, calibrating = nn.Linear(32, CLASSES), make_loss("seca")
    optimizer = torch.optim.Adam(classifier.parameters(), lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        calibrating(classifier(encoder(inputs)), labels).backward()
        optimizer.step()
    assert all(map(torch.equal, encoder.parameters(), before))
    assert (classifier(encoder(inputs)).argmax(dim=1) == labels).double().mean() > 0.95


def test_bad_input_is_named() -> None:
    first, second, labels = views()
    loss = SupervisedContrastive()
    assert repr(loss) == "SupervisedContrastive(temperature=0.1)"
    for wrong in ((first, second[:5], labels), (first, second, labels[:5]), (first[0],) * 3):
        with pytest.raises(DataError, match=r"must be the embeddings \(n, d\) of two views"):
            loss(*wrong)
    with pytest.raises(DataError, match="labels must be class indices"):
        loss(first, second, labels.float())
    with pytest.raises(ParameterError, match="temperature must be greater than 0"):
        SupervisedContrastive(0.0)
    with pytest.raises(ParameterError, match="at least 1, got 0 and 128"):
        projection_head(0)
