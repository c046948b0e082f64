"""Adam for weights whose gradients are set by hand.

The one of ``torch.optim`` loads torch's compiler when it is made: two seconds and 70 MB that a
fit of 49 numbers does not need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FIRST, SECOND = 0.9, 0.999  # how much of the gradient's mean and of its square's is kept
EPSILON = 1e-8


class Adam:
    """Full-batch Adam with the usual constants; the same numbers as ``torch.optim.Adam``.

    Reference: Kingma and Ba, "Adam: A Method for Stochastic Optimization", Algorithm 1.
    """

    def __init__(self, weights: Sequence[torch.Tensor], learning_rate: float) -> None:
        self._weights = weights
        self._learning_rate = learning_rate
        self._means = [weight.new_zeros(weight.shape) for weight in weights]
        self._squares = [weight.new_zeros(weight.shape) for weight in weights]
        self._steps = 0

    def step(self) -> None:
        """Move the weights, in place, by what their ``grad`` says."""
        self._steps += 1
        size = self._learning_rate / (1 - FIRST**self._steps)
        correction = math.sqrt(1 - SECOND**self._steps)
        for weight, mean, square in zip(self._weights, self._means, self._squares, strict=True):
            gradient = weight.grad
            assert gradient is not None  # noqa: S101
            mean.lerp_(gradient, 1 - FIRST)
            square.mul_(SECOND).addcmul_(gradient, gradient, value=1 - SECOND)
            weight.addcdiv_(mean, (square.sqrt() / correction).add_(EPSILON), value=-size)
