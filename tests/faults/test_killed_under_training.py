"""The service is killed while ranks train: no gamma changes and no call exceeds its budget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from helpers.training_processes import STEPS, trained

BUDGET = 2.0


def test_four_ranks_and_a_killed_service(tmp_path: Path, note: Callable[..., None]) -> None:
    found = trained(tmp_path, world_size=4)
    bits = {tuple(one[name]) for one in found.ranks for name in ("with", "without")}
    assert len(bits) == 1
    assert [one.step for one in found.history] == list(range(1, STEPS + 1))
    assert all(one.verified for one in found.history)
    assert found.longest < BUDGET + 0.5
    note("service killed under four ranks that train", 1, longest_call_s=found.longest)
