"""Topic 9: forward and backward pass of every loss, compared with torch's cross-entropy."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.output import Row, Target, Topic
from benchmarks.timing import Contender, Measured, alternate, milliseconds, ratio

TORCH = "torch cross_entropy"
FAMILY = ("focal", "flsd_53", "inverse_focal", "dual_focal", "calfocal", "adafocal")
LIMITS = {**dict.fromkeys(("seca", "selective_risk"), 2.5), **dict.fromkeys(FAMILY, 1.5)}
BATCHES = 5
STEPS = 3
IMAGES, CLASSES = 128, 10
EMBEDDED = 128


def run(sizes: Iterable[tuple[int, int]], rounds: int, budget: float) -> Iterable[Topic]:
    """Yield a table for each size."""
    _settle_memory()
    for n, k in sizes:
        yield compare(data.draw(n, k), rounds, budget)
    yield in_training(max(2, rounds // 3), budget)


def _settle_memory() -> None:
    """Free a large block once, as any training does: glibc then keeps blocks of a batch's size."""
    import torch

    torch.zeros(30 * 2**18)


def compare(sample: data.Sample, rounds: int, budget: float) -> Topic:
    """Time every loss and torch's cross-entropy."""
    measured = _alone(sample, BATCHES, rounds, budget)
    torch_time = measured[TORCH]
    return Topic(
        f"loss and gradient, a batch of {sample.size} float32",
        [_row(found, torch_time) for found in measured.values()],
        [
            Target(f"{name} over cross-entropy", ratio(measured[name], torch_time), limit)
            for name, limit in LIMITS.items()
        ],
    )


def in_training(rounds: int, budget: float) -> Topic:
    """Time whole steps of the network of docs/studies/losses.md, and the loss's share."""
    import torch

    from studies.cnn import network, optimiser, train

    sample = data.draw(IMAGES, CLASSES)
    alone = _alone(sample, STEPS, rounds, budget)
    labels = torch.from_numpy(sample.labels)
    images = torch.randn(IMAGES, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    order = [torch.arange(IMAGES)] * STEPS

    def training(name: str, loss: Any) -> Contender:
        model = network()
        steps = optimiser(model)
        return Contender(name, lambda: train(model, steps, loss, images, labels, order))

    contenders = [training(name, loss) for name, loss in _losses(sample).items()]
    whole = alternate(contenders, rounds, budget)
    rows = []
    for name, found in whole.items():
        step, part = found.median, alone[name].median
        rows.append(
            {
                "loss": name,
                "step, ms": None if step is None else milliseconds(step / STEPS),
                "it / torch": ratio(found, whole[TORCH]),
                "loss's share": part / step if part and step else None,
                "runs": found.runs,
                "failure": found.error or alone[name].error,
            }
        )
    return Topic(f"a whole training step of the study's network, {IMAGES} images", rows, [])


def _alone(sample: data.Sample, batches: int, rounds: int, budget: float) -> Mapping[str, Measured]:
    """Time each loss and its gradient on the same batch, `batches` times per round."""
    import torch

    logits = torch.from_numpy(sample.logits).requires_grad_()
    labels = torch.from_numpy(sample.labels)
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(len(labels), EMBEDDED, generator=generator).requires_grad_()
    more = {"embeddings": embeddings, "index": torch.arange(len(labels))}

    def work(loss: Any) -> float:
        for _ in range(batches):
            logits.grad = embeddings.grad = None
            value = loss(logits, labels, **more)
            value.backward()
        return float(value.detach())

    return alternate(
        [
            Contender(name, lambda loss=loss: work(loss))  # type: ignore[misc]
            for name, loss in _losses(sample).items()
        ],
        rounds,
        budget,
    )


def _losses(sample: data.Sample) -> dict[str, Any]:
    """Return torch's cross-entropy and every registered loss; AdaFocal has a state."""
    from torch.nn.functional import cross_entropy

    from calibrators.losses import all_losses, make_loss

    rows, classes = sample.logits.shape
    needs = {
        "correctness_ranking": {"samples": rows},
        "online_label_smoothing": {"classes": classes},
    }
    losses: dict[str, Any] = {TORCH: lambda logits, labels, **_: cross_entropy(logits, labels)}
    losses |= {name: make_loss(name, **needs.get(name, {})) for name in all_losses()}
    losses["adafocal"] = _steered(sample)
    return losses


def _steered(sample: data.Sample) -> Any:
    """Return AdaFocal after an update, with gammas of both signs."""
    from calibrators.adafocal import AdaFocalState, BinStatistics
    from calibrators.losses.adafocal import AdaFocalLoss

    seen = BinStatistics.from_logits(sample.logits, sample.labels)
    state = AdaFocalState.initial().update(seen)
    return AdaFocalLoss(replace(state, gammas=np.linspace(-2.0, 5.0, state.settings.bins)))


def _row(found: Measured, torch_time: Measured) -> Row:
    from calibrators.losses import all_losses

    def one_batch(seconds: float | None) -> float | None:
        return None if seconds is None else milliseconds(seconds / BATCHES)

    kind = all_losses().get(found.name)
    return {
        "loss": found.name,
        "ms": one_batch(found.median),
        "fastest": one_batch(found.fastest),
        "runs": found.runs,
        "it / torch": ratio(found, torch_time),
        "cost in rows": "quadratic" if kind and kind.quadratic else "linear",
        "value": found.value,
        "failure": found.error,
    }
