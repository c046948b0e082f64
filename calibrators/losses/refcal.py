"""RefCal: a contrastive loss for the embeddings plus any loss for the logits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor

from calibrators.errors import DataError, ParameterError
from calibrators.losses.base import Loss
from calibrators.losses.contrastive import SMALLEST, contrastive


def refinement(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return the hard-pair refinement loss of each anchor (n,).

    It is ``min over positives 1/2 |e_i - e_p|^2 - min over negatives 1/2 |e_i - e_n|^2`` on
    L2-normalised embeddings, or 0 for an anchor without positives or negatives. ``contrastive`` is
    an upper bound on it at temperatures up to 1 (Lemma 2 of the source), but not above.
    """
    unit = F.normalize(embeddings, dim=1, eps=SMALLEST)
    half = 1 - unit @ unit.T
    same = labels[:, None] == labels
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    positive = half.masked_fill(~same | itself, torch.inf).amin(dim=1)
    negative = half.masked_fill(same, torch.inf).amin(dim=1)
    return torch.where(positive.isinf() | negative.isinf(), 0.0, positive - negative)


@dataclass(eq=False, repr=False)
class RefCalLoss(Loss):
    """Any ``loss`` on the logits + weight * supervised contrastive loss of the ``embeddings``.

    Call it as ``loss(logits, labels, embeddings=embeddings)`` with embeddings (n, d) from the
    penultimate layer. Use it to improve the ranking by confidence: it does so in the balanced task
    of docs/studies/losses.md, but neither in its long-tailed task, although the abstract reports
    gains on such a task, nor on the text of docs/studies/recipes.md. ``hard_pairs`` uses the
    refinement loss itself instead of its bound. Our source, a page about the paper, gives neither a
    temperature nor a weight; 0.1 and 1 are our choices. The cost is quadratic in the batch size.
    The authors' code trains in two stages instead; see ``SupervisedContrastive``.

    Reference: Hebbalaguppe et al., Enhancing deep neural network reliability with refinement and
    calibration, 2026.

    >>> logits, labels = torch.tensor([[2.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 0])
    >>> round(RefCalLoss()(logits, labels, embeddings=torch.eye(2)).item(), 4)
    0.3005
    """

    loss: str = "cross_entropy"
    loss_params: dict = field(default_factory=dict)  # type: ignore[type-arg]
    weight: Annotated[float, Ge(0)] = 1.0
    temperature: Annotated[float, Gt(0)] = 0.1
    hard_pairs: bool = False

    name: ClassVar[str] = "refcal"
    summary: ClassVar[str] = (
        "any other loss plus a supervised contrastive term; takes `embeddings=`; quadratic in "
        "the batch"
    )
    takes: ClassVar[frozenset[str]] = frozenset({"embeddings", "index"})
    quadratic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        from calibrators.losses.registry import make_loss

        for name in self.loss_params.keys() & {"reduction", "ignore_index"}:
            raise ParameterError("bad_parameter", f"set {name} on refcal, not on its inner loss")
        if self.loss == self.name:
            raise ParameterError("bad_parameter", "refcal cannot be its own inner loss")
        self.calibration = make_loss(self.loss, **self.loss_params)

    def losses(
        self, logits: Tensor, labels: Tensor, embeddings: Tensor | None = None, **more: Any
    ) -> Tensor:
        """Return the loss of each row; ``embeddings`` are (n, d)."""
        if embeddings is None:
            raise DataError(
                "no_embeddings",
                "call loss(logits, labels, embeddings=...) with a row of embeddings for each label",
            )
        term = (
            refinement(embeddings, labels)
            if self.hard_pairs
            else contrastive(embeddings, labels, self.temperature)
        )
        inner = {name: one for name, one in more.items() if name in self.calibration.takes}
        return self.calibration.losses(logits, labels, **inner) + self.weight * term

    @property
    def needs_all_ranks(self) -> bool:
        """True if the loss on the logits needs all ranks."""
        return self.calibration.needs_all_ranks

    def next_epoch(self) -> None:
        """Mark the end of an epoch and forward the call to the loss on the logits."""
        self.calibration.next_epoch()
