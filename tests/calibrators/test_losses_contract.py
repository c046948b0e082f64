"""The contract of all losses, found by discovery: new losses are tested automatically."""

from __future__ import annotations

import re

import pytest
import torch
from helpers.loss_batches import CLASSES, ROWS, batch, every_loss, every_variant, fresh, made

from calibrators.errors import DataError, ParameterError
from calibrators.losses import all_losses

# the parameter at which a loss is cross-entropy
IS_CROSS_ENTROPY = {
    "cross_entropy": {},
    "focal": {"gamma": 0.0},
    "inverse_focal": {"gamma": 0.0},
    "dual_focal": {"gamma": 0.0},
    "label_smoothing": {"smoothing": 0.0},
    "mmce": {"weight": 0.0},
    "dca": {"weight": 0.0},
    "mdca": {"weight": 0.0, "gamma": 0.0},
    "online_label_smoothing": {"hard": 1.0},
    "kde_cross_entropy": {"weight": 0.0},
    "correctness_ranking": {"weight": 0.0},
    "refcal": {"weight": 0.0},
}
# the neighbours in the batch are the pairs it ranks
HELD_WEIGHTS = ("selective_risk", "aurc", "calfocal per sample")
ORDER_MATTERS = ("correctness_ranking", "refcal ranking")


def test_all_of_them_are_found() -> None:
    assert set(all_losses()) >= {
        *IS_CROSS_ENTROPY,
        "adafocal",
        "calfocal",
        "seca",
        "selective_risk",
        "aurc",
        "brier",
        "flsd_53",
    }


@every_loss
def test_its_docstring_has_formula_reference_use_and_example(name: str) -> None:
    said = all_losses()[name].__doc__ or ""
    assert any(re.search(r"[-+*/^|]|mean|sum|log", formula) for formula in said.split("``")[1::2])
    assert "Reference" in said
    assert "Use it" in said
    assert ">>> " in said


@every_variant
def test_the_reductions_agree(name: str) -> None:
    logits, labels, more = batch()
    single = made(name, reduction="none")(logits, labels, **more)
    assert single.shape == labels.shape
    torch.testing.assert_close(made(name)(logits, labels, **more), single.mean())
    torch.testing.assert_close(made(name, reduction="sum")(logits, labels, **more), single.sum())


@pytest.mark.parametrize(("name", "params"), IS_CROSS_ENTROPY.items())
def test_it_is_cross_entropy_where_it_must_be(name: str, params: dict[str, float]) -> None:
    logits, labels, more = batch()
    expected = torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(made(name, **params)(logits, labels, **more), expected)


@every_variant
def test_the_names_of_the_classes_do_not_matter(name: str) -> None:
    logits, labels, more = batch()
    order = torch.randperm(CLASSES, generator=torch.Generator().manual_seed(1))
    renamed = made(name)(logits[:, order], order.argsort()[labels], **more)
    torch.testing.assert_close(renamed, made(name)(logits, labels, **more))


@every_variant
def test_the_order_of_the_samples_does_not_matter(name: str) -> None:
    if name.startswith(ORDER_MATTERS):
        pytest.skip("its pairs are the neighbours of the batch")
    logits, labels, more = batch()
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    moved = made(name)(
        logits[order], labels[order], **{key: one[order] for key, one in more.items()}
    )
    torch.testing.assert_close(moved, made(name)(logits, labels, **more))


@every_variant
def test_a_constant_added_to_a_row_changes_nothing(name: str) -> None:
    logits, labels, more = batch()
    shifted = made(name)(logits + torch.linspace(-3, 3, ROWS)[:, None], labels, **more)
    torch.testing.assert_close(shifted, made(name)(logits, labels, **more))


@every_variant
def test_ignored_rows_do_not_count(name: str) -> None:
    logits, labels, more = batch()
    keep = torch.arange(ROWS) % 3 != 0
    marked = torch.where(keep, labels, -100)
    logits.requires_grad_()
    loss = made(name)(logits, marked, **more)
    loss.backward()
    alone = made(name)(logits[keep], labels[keep], **{key: one[keep] for key, one in more.items()})
    torch.testing.assert_close(loss, alone)
    assert not logits.grad[~keep].any()
    single = made(name, reduction="none")(logits, marked, **more)
    assert not single[~keep].any()


@every_variant
def test_a_batch_that_is_all_ignored_is_0(name: str) -> None:
    logits, labels, more = batch()
    logits.requires_grad_()
    loss = made(name)(logits, torch.full_like(labels, -100), **more)
    loss.backward()
    assert loss.item() == 0
    assert not logits.grad.any()


@every_variant
@pytest.mark.parametrize("rows", [0, ROWS])
def test_nothing_to_learn_is_0_even_with_classes_ruled_out(name: str, rows: int) -> None:
    logits, labels, more = batch()
    logits[:, 0] = -torch.inf
    leaf = logits[:rows].clone().requires_grad_()
    ignored = torch.full_like(labels[:rows], -100)
    loss = made(name)(leaf, ignored, **{key: one[:rows] for key, one in more.items()})
    loss.backward()
    assert loss.item() == 0
    assert not leaf.grad.any()


@every_variant
def test_segmentation_is_the_same_as_its_pixels(name: str) -> None:
    logits, labels, more = batch()
    image, features = (
        one.reshape(2, 4, 3, -1).movedim(-1, 1) for one in (logits, more["embeddings"])
    )
    shaped = {"embeddings": features, "index": more["index"].reshape(2, 4, 3)}
    pixels = made(name)(image, labels.reshape(2, 4, 3), **shaped)
    torch.testing.assert_close(pixels, made(name)(logits, labels, **more))
    single = made(name, reduction="none")(image, labels.reshape(2, 4, 3), **shaped)
    assert single.shape == (2, 4, 3)


@every_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_saturated_logits_give_finite_losses_and_gradients(name: str, dtype: torch.dtype) -> None:
    _, labels, more = batch(dtype=torch.float32)
    with_classes = torch.where(torch.arange(ROWS) % 2 == 0, labels, (labels + 1) % CLASSES)
    sure = 3e4 * torch.nn.functional.one_hot(with_classes, CLASSES)
    leaf = sure.to(dtype).requires_grad_()
    loss = made(name)(leaf, labels, **more)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(leaf.grad).all()


@every_variant
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing_but_the_precision_of_the_logits(
    name: str, dtype: torch.dtype
) -> None:
    logits, labels, more = batch(dtype=torch.float32)
    found = []
    for cast in (True, False):
        half = logits.to(dtype)
        leaf = (half if cast else half.float()).requires_grad_()
        with torch.autocast("cpu", dtype, enabled=cast):
            loss = made(name)(leaf, labels, **more)
        loss.backward()
        assert loss.dtype == torch.float32
        found.append((loss.detach(), leaf.grad.float()))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-2, atol=1e-4)


@every_variant
@pytest.mark.parametrize("kind", [torch.int32, torch.int16, torch.uint8])
def test_labels_are_of_any_integers(name: str, kind: torch.dtype) -> None:
    logits, labels, more = batch()
    found = made(name)(logits, labels.to(kind), **more)
    torch.testing.assert_close(found, made(name)(logits, labels, **more))


@every_variant
def test_second_derivatives_against_finite_differences(name: str) -> None:
    logits, labels, more = batch(seed=5)
    loss = made(name)
    direction = torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(6)).double()
    leaf = logits.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(leaf, labels, **more), leaf, create_graph=True)
    (found,) = torch.autograd.grad((slope * direction).sum(), leaf)
    if name.startswith(HELD_WEIGHTS):
        pytest.skip("what carries no gradient changes with the logits")

    def slope_at(where: torch.Tensor) -> torch.Tensor:
        where = where.clone().requires_grad_()
        return torch.autograd.grad(loss(where, labels, **more), where)[0]

    if "seca" in name:  # the target has no gradient
        p = torch.softmax(logits, dim=1)
        along = p * (direction - (p * direction).sum(dim=1, keepdim=True))
        torch.testing.assert_close(found, 2 * along / ROWS, rtol=1e-6, atol=1e-9)
        return
    step = 1e-6
    expected = slope_at(logits + step * direction) - slope_at(logits - step * direction)
    torch.testing.assert_close(found, expected / (2 * step), rtol=1e-4, atol=1e-6)


@every_variant
@pytest.mark.parametrize("rows", [1, 2])
def test_tiny_batches_and_missing_classes(name: str, rows: int) -> None:
    logits, labels, more = batch()
    leaf = logits[:rows].clone().requires_grad_()
    loss = made(name)(leaf, labels[:rows], **{key: one[:rows] for key, one in more.items()})
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(leaf.grad).all()


@every_variant
def test_state_survives_a_checkpoint(name: str) -> None:
    logits, labels, more = batch(dtype=torch.float32)
    loss = fresh(name)
    loss(logits, labels, **more)
    loss.next_epoch()
    resumed = fresh(name)
    resumed.load_state_dict(loss.state_dict())
    torch.testing.assert_close(
        resumed.eval()(logits, labels, **more), loss.eval()(logits, labels, **more)
    )


@every_variant
def test_bad_input_is_refused(name: str) -> None:
    logits, labels, more = batch()
    with pytest.raises(DataError, match="class indices"):
        made(name)(logits, labels.double(), **more)
    for shape in [(ROWS,), (ROWS, 1), (ROWS + 1, CLASSES), (CLASSES, ROWS)]:
        with pytest.raises(DataError, match="logits must be"):
            made(name)(torch.zeros(shape), labels, **more)
    for wrong in (CLASSES, -1):
        with pytest.raises(DataError, match=f"1 are not, the first being {wrong}"):
            made(name)(logits, labels.index_fill(0, torch.tensor(3), wrong), **more)
    with pytest.raises(DataError, match="labels must be a tensor, got list"):
        made(name)(logits, labels.tolist(), **more)
    with pytest.raises(DataError, match="got embedings"):
        made(name)(logits, labels, embedings=more["embeddings"])
    with pytest.raises(ParameterError, match="has no parameter 'no_such'"):
        made(name, no_such=1)
    with pytest.raises(ParameterError, match="reduction must be one of"):
        made(name, reduction="average")


@every_variant
def test_it_learns(name: str) -> None:
    logits, labels, more = batch(dtype=torch.float32)
    leaf = torch.zeros_like(logits).add_(0.01 * logits).requires_grad_()
    loss = fresh(name)
    for _ in range(60):
        (slope,) = torch.autograd.grad(loss(leaf, labels, **more), leaf)
        leaf.data -= 5 * slope
    assert (leaf.argmax(dim=1) == labels).double().mean() > 0.9
