"""The hand-written Adam compared with torch's."""

from __future__ import annotations

import numpy as np
import torch

from calibrators.numerics.adam import Adam


def test_takes_the_steps_that_torch_takes() -> None:
    rng = np.random.default_rng(3)
    start = rng.normal(size=49)
    ours, tensor, theirs = start.copy(), torch.tensor(start), torch.tensor(start)
    by_hand, on_tensors = Adam(5e-3), Adam(5e-3)
    reference = torch.optim.Adam([theirs], lr=5e-3)
    for step in range(200):
        gradient = (rng.normal(size=49) + theirs.numpy()) * 10.0 ** (step % 7 - 5)
        theirs.grad = torch.tensor(gradient)
        reference.step()
        ours = ours + by_hand.move(gradient)
        tensor = tensor + on_tensors.move(torch.tensor(gradient))
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12)
    np.testing.assert_allclose(tensor.numpy(), theirs.numpy(), rtol=1e-12)
    assert not np.array_equal(ours, start)
