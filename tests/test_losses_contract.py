"""What every loss must do, found by discovery: a new loss is tested by being there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calibrators.adafocal import Settings
from calibrators.constraints import field_hints
from calibrators.errors import DataError, ParameterError
from calibrators.losses import all_losses, make_loss
from tests.loss_batches import CLASSES, NEEDS, ROWS, batch, every_loss, made

GUIDE = Path(__file__).parent.parent / "docs" / "training.md"
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
ORDER_MATTERS = {"correctness_ranking"}


def test_all_of_them_are_found() -> None:
    assert set(all_losses()) >= {
        *IS_CROSS_ENTROPY,
        "seca",
        "selective_risk",
        "aurc",
        "brier",
        "flsd_53",
    }


@every_loss
def test_the_guide_lists_it_with_its_parameters(name: str) -> None:
    rows = [line for line in GUIDE.read_text().splitlines() if line.startswith("| `")]
    row = next(row for row in rows if f"`{name}`" in row.split("|")[1])
    common = {"reduction", "ignore_index", *field_hints(Settings)}
    for parameter in all_losses()[name].hyper_parameters().keys() - common:
        assert f"`{parameter}`" in row.split("|")[3]


@every_loss
def test_its_docstring_has_formula_reference_use_and_example(name: str) -> None:
    said = all_losses()[name].__doc__ or ""
    assert said.count("``") >= 2
    assert "Reference" in said
    assert "Helps" in said
    assert ">>> " in said


@every_loss
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


@every_loss
def test_the_names_of_the_classes_do_not_matter(name: str) -> None:
    logits, labels, more = batch()
    order = torch.randperm(CLASSES, generator=torch.Generator().manual_seed(1))
    renamed = made(name)(logits[:, order], order.argsort()[labels], **more)
    torch.testing.assert_close(renamed, made(name)(logits, labels, **more))


@every_loss
def test_the_order_of_the_samples_does_not_matter(name: str) -> None:
    if name in ORDER_MATTERS:
        pytest.skip("its pairs are the neighbours of the batch")
    logits, labels, more = batch()
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    moved = made(name)(
        logits[order], labels[order], **{key: one[order] for key, one in more.items()}
    )
    torch.testing.assert_close(moved, made(name)(logits, labels, **more))


@every_loss
def test_a_constant_added_to_a_row_changes_nothing(name: str) -> None:
    logits, labels, more = batch()
    shifted = made(name)(logits + torch.linspace(-3, 3, ROWS)[:, None], labels, **more)
    torch.testing.assert_close(shifted, made(name)(logits, labels, **more))


@every_loss
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


@every_loss
def test_a_batch_that_is_all_ignored_is_0(name: str) -> None:
    logits, labels, more = batch()
    logits.requires_grad_()
    loss = made(name)(logits, torch.full_like(labels, -100), **more)
    loss.backward()
    assert loss.item() == 0
    assert not logits.grad.any()


@every_loss
def test_segmentation_is_the_same_as_its_pixels(name: str) -> None:
    logits, labels, more = batch()
    image = logits.reshape(2, 4, 3, CLASSES).movedim(-1, 1)
    pixels = made(name)(image, labels.reshape(2, 4, 3), **more)
    torch.testing.assert_close(pixels, made(name)(logits, labels, **more))
    single = made(name, reduction="none")(image, labels.reshape(2, 4, 3), **more)
    assert single.shape == (2, 4, 3)


@every_loss
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


@every_loss
def test_autocast_gives_nearly_the_same(name: str) -> None:
    logits, labels, more = batch(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        cast = made(name)(logits.bfloat16(), labels, **more)
    assert cast.dtype == torch.float32
    torch.testing.assert_close(cast, made(name)(logits, labels, **more), rtol=0.05, atol=0.05)


@every_loss
@pytest.mark.parametrize("rows", [1, 2])
def test_tiny_batches_and_missing_classes(name: str, rows: int) -> None:
    logits, labels, more = batch()
    leaf = logits[:rows].clone().requires_grad_()
    loss = made(name)(leaf, labels[:rows], **{key: one[:rows] for key, one in more.items()})
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(leaf.grad).all()


@every_loss
def test_state_survives_a_checkpoint(name: str) -> None:
    logits, labels, more = batch(dtype=torch.float32)
    loss = make_loss(name, **NEEDS.get(name, {}))
    loss(logits, labels, **more)
    loss.next_epoch()
    resumed = make_loss(name, **NEEDS.get(name, {}))
    resumed.load_state_dict(loss.state_dict())
    torch.testing.assert_close(
        resumed.eval()(logits, labels, **more), loss.eval()(logits, labels, **more)
    )


@every_loss
def test_bad_input_is_told(name: str) -> None:
    logits, labels, more = batch()
    with pytest.raises(DataError, match="class indices"):
        made(name)(logits, labels.double(), **more)
    for shape in [(ROWS,), (ROWS, 1), (ROWS + 1, CLASSES), (CLASSES, ROWS)]:
        with pytest.raises(DataError, match="logits must be"):
            made(name)(torch.zeros(shape), labels, **more)
    with pytest.raises(ParameterError, match="has no parameter 'no_such'"):
        made(name, no_such=1)
    with pytest.raises(ParameterError, match="reduction must be one of"):
        made(name, reduction="average")


@every_loss
def test_it_learns(name: str) -> None:
    logits, labels, more = batch(dtype=torch.float32)
    leaf = torch.zeros_like(logits).add_(0.01 * logits).requires_grad_()
    loss = make_loss(name, **NEEDS.get(name, {}))
    for _ in range(60):
        (slope,) = torch.autograd.grad(loss(leaf, labels, **more), leaf)
        leaf.data -= 5 * slope
    assert (leaf.argmax(dim=1) == labels).double().mean() > 0.9
