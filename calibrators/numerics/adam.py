"""Adam for a vector of parameters, which may be a numpy array or a torch tensor.

``torch.optim.Adam`` loads torch's compiler on creation. This costs two seconds and 70 MB, too much
for a fit of 49 parameters.
"""

from __future__ import annotations

import math
from typing import Any

FIRST, SECOND = 0.9, 0.999  # decay rates of the first and second moments
EPSILON = 1e-8


class Adam:
    """Adam with the usual constants, and with the same results as ``torch.optim.Adam``.

    Reference: Kingma and Ba, "Adam: A Method for Stochastic Optimization", Algorithm 1.
    """

    def __init__(self, learning_rate: float) -> None:
        self._learning_rate = learning_rate
        self._mean: Any = 0.0
        self._square: Any = 0.0
        self._steps = 0

    def move(self, gradient: Any) -> Any:
        """Return the update to the parameters for a gradient."""
        self._steps += 1
        self._mean = FIRST * self._mean + (1 - FIRST) * gradient
        self._square = SECOND * self._square + (1 - SECOND) * gradient * gradient
        size = self._learning_rate / (1 - FIRST**self._steps)
        correction = math.sqrt(1 - SECOND**self._steps)
        return -size * self._mean / (self._square**0.5 / correction + EPSILON)
