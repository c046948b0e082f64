"""Injected faults: real processes on a real PostgreSQL and S3 are killed, paused and starved.

``make test-faults`` injects each fault as often as its table of results says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.backends import Backend, Embedded
from helpers.sites import Site

FAULT = "fault"
# they take minutes; tests of worker processes and of a killed service cover part of this
collect_ignore_glob = [] if os.environ.get("CALIBRD_TEST_FAULTS") else ["test_*.py"]


@pytest.fixture(scope="module")
def backend(request: pytest.FixtureRequest) -> Backend:
    """Return PostgreSQL with S3, or the backend named by the test's parameter."""
    if getattr(request, "param", "fleet") == "embedded":
        return Embedded()
    found: Backend = request.getfixturevalue("shared_fleet")
    return found


@pytest.fixture(scope="module")
def site(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a service for all tests of a file; each test starts the processes it needs."""
    folder = tmp_path_factory.mktemp("site")
    with Site(backend.settings(folder), folder) as made:
        yield made


@pytest.fixture
def own_site(backend: Backend, tmp_path: Path) -> Iterator[Site]:
    """Yield a service for one test."""
    with Site(backend.settings(tmp_path), tmp_path) as made:
        yield made


@pytest.fixture
def note(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Record a survived fault for the table: its name, how often it was injected, and figures."""

    def noted(fault: str, times: int, **figures: float | str) -> None:
        said = ", ".join(f"{name.replace('_', ' ')} {_text(one)}" for name, one in figures.items())
        record_property(FAULT, [fault, str(times), said])

    return noted


def _text(figure: float | str) -> str:
    return f"{figure:.3g}" if isinstance(figure, float) else str(figure)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table of faults."""
    rows, failed = [], []
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            if "tests/faults/" not in report.nodeid:
                continue
            noted = [value for name, value in report.user_properties if name == FAULT]
            if outcome == "passed" and report.when == "call":
                rows += [(*one[:2], "yes", one[2]) for one in noted]
            elif outcome != "passed":
                failed.append((report.nodeid.partition("::")[2], "", "NO", ""))
    if not rows + failed:
        return
    terminalreporter.section("faults")
    for fault, times, held, figures in [("fault", "times", "held", "figures"), *rows, *failed]:
        terminalreporter.write_line(f"{fault:<58} {times:>6}  {held:<4}  {figures}".rstrip())
