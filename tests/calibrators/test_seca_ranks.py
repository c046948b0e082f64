"""SECA over two ranks of torch.distributed, with class means of one rank or of all."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.multiprocessing
from torch import Tensor, distributed

from calibrators.losses.seca import SECALoss

CLASSES, ROWS = 4, 12


def batch() -> tuple[Tensor, Tensor]:
    """Return the batch of a rank; the second rank has no sample of the last class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, CLASSES, (2 * ROWS,), generator=generator)
    labels[ROWS:].clamp_(max=CLASSES - 2)
    return 2 * torch.randn(2 * ROWS, CLASSES, generator=generator).double(), labels


def rank(number: int, folder: str) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    distributed.init_process_group("gloo", init_method=meeting, rank=number, world_size=2)
    logits, labels = (half.chunk(2)[number] for half in batch())
    found = {}
    for all_ranks in (False, True):
        leaf = logits.clone().requires_grad_()
        loss = SECALoss(all_ranks=all_ranks)(leaf, labels)
        loss.backward()
        found[all_ranks] = (loss.detach(), leaf.grad)
    if number == 0:  # on this rank only, because only training waits for the other ranks
        found["eval"] = (SECALoss().eval()(logits, labels), None)
    torch.save(found, f"{folder}/{number}.pt")
    distributed.destroy_process_group()


def test_means_are_of_the_own_batch_or_of_all(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(rank, (str(tmp_path),), nprocs=2)  # type: ignore[no-untyped-call]
    ranks = [torch.load(tmp_path / f"{number}.pt") for number in (0, 1)]
    logits, labels = batch()
    whole = logits.clone().requires_grad_()
    together = SECALoss()(whole, labels)
    together.backward()
    losses, slopes = zip(*(found[True] for found in ranks), strict=True)
    torch.testing.assert_close(torch.stack(losses).mean(), together.detach())
    torch.testing.assert_close(torch.cat(slopes) / 2, whole.grad)
    for number, found in enumerate(ranks):
        alone = SECALoss()(*(half.chunk(2)[number] for half in (logits, labels)))
        torch.testing.assert_close(found[False][0], alone)
    torch.testing.assert_close(ranks[0]["eval"][0], ranks[0][False][0])
    assert not torch.isclose(ranks[0][False][0], losses[0])
