"""Two ranks of torch.distributed train while their service is killed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers.training_processes import STEPS, trained

BUDGET = 2.0


def test_a_killed_service_changes_no_gamma(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = trained(tmp_path, world_size=2)
    first, second = found.ranks
    assert first["with"] == second["with"] == first["without"] == second["without"]
    assert len(set(first["with"])) == STEPS
    assert [one.step for one in found.history] == list(range(1, STEPS + 1))
    assert all(one.verified for one in found.history)
    with capsys.disabled():
        sys.stdout.write(f"\ntwo ranks, killed service: longest call {found.longest:.3f} s\n")
    assert found.longest < BUDGET + 0.5
    refused, *others = first["troubles"]
    assert refused.startswith("Conflict")
    assert "rate 5.0, not 1.0" in second["troubles"][0]
    assert others == second["troubles"][1:]
    assert others == [
        "3 rows",
        "no rows were observed: call observe before step",
        "the Monitor of 'last' is closed",
    ]
