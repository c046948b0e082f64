"""What jobs leave on disk: found by the next process, sent in its place, and never lost."""

from __future__ import annotations

from pathlib import Path

from calibrators.adafocal import BinStatistics
from calibrd.training.journal import LOCK, Journal
from calibrd.training.passes import Pass, Plan, Start


def monitored(session: str, begun: float = 0.0) -> Plan:
    return Plan("run", "monitor", None, 0, 1, "trainer", session, Start(), begun=begun)


def leave(journal: Journal, plan: Plan, *numbers: int) -> Path:
    """What a process leaves that ends with these passes unsent; where."""
    drawer = journal.open(plan)
    for number in numbers:
        drawer.keep(Pass(number, BinStatistics.empty().to_bytes()))
    drawer.release()
    return drawer.folder


def test_a_folder_that_is_being_removed_hides_no_other(tmp_path: Path) -> None:
    """Its process, which has sent all, has just removed the lock."""
    journal = Journal(tmp_path / "run")
    removed = leave(journal, monitored("a"), 1)
    (removed / LOCK).unlink()
    leave(journal, monitored("b", begun=2.0), 1)
    leave(journal, monitored("c", begun=1.0), 1, 2)
    found = journal.leftovers()
    assert [plan.session for plan, _, _ in found] == ["c", "b"]
    assert [len(passes) for _, _, passes in found] == [2, 1]
    assert not (removed / LOCK).exists()
    assert journal.leftovers() == [], "they are held"
    for _, drawer, _ in found:
        drawer.release()
