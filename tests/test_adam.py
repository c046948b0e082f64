"""Adam by hand, against torch's own."""

from __future__ import annotations

import torch

from calibrators.adam import Adam


def test_takes_the_steps_that_torch_takes() -> None:
    rng = torch.Generator().manual_seed(3)
    start = [torch.randn(size, generator=rng, dtype=torch.float64) for size in ((2, 16), (16,), ())]
    ours = [one.clone() for one in start]
    theirs = [one.clone() for one in start]
    by_hand, reference = Adam(ours, 5e-3), torch.optim.Adam(theirs, lr=5e-3)
    for step in range(200):
        for mine, its in zip(ours, theirs, strict=True):
            noise = torch.randn(mine.shape, generator=rng, dtype=torch.float64)
            mine.grad = its.grad = (noise + its) * 10.0 ** (step % 7 - 5)
        by_hand.step()
        reference.step()
    for mine, its, before in zip(ours, theirs, start, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-13, atol=0)
        assert not torch.equal(mine, before)
