"""Fixtures shared by several test folders."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.samples import draw

from calibrators import CalibrationSet
from calibrators.fitting.devices import available_devices

if TYPE_CHECKING:
    from helpers.backends import Fleet

TESTS = Path(__file__).parent
ROOT = TESTS.parent
# if a long file began last, the other processes of `make test` would be idle
LONGEST_FIRST = (
    "service/worker/test_worker_processes.py",
    "calibrd/test_documents.py",
    "calibrators/test_contract.py",
    "service/web/test_dashboard_in_a_browser.py",
    "calibrd/test_examples.py",
    "service/maintenance/test_operations.py",
    "service/registry/test_version_lifecycle.py",
    "service/test_retries_and_races.py",
    "service/worker/test_network_partition.py",
    "service/cli/test_command_line.py",
    "service/test_documentation.py",
    "calibrd/test_wheel.py",
)

# they measure memory, draw many data sets, train, or build wheels
SLOW = (
    "calibrators/test_memory.py",
    "calibrators/test_rounded_probabilities.py",
    "calibrators/test_cut_lists.py",
    "calibrators/test_seca_ranks.py",
    "project/test_demo.py",
    "project/test_server_wheel.py",
    "project/test_study_*.py",
    "project/test_verdicts.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test by what it needs: nothing, a service, PostgreSQL and S3, or a browser."""
    is_service = {"service", "calibrd", "faults"} & set(item.path.relative_to(ROOT).parts[1:2])
    item.add_marker(pytest.mark.service if is_service else pytest.mark.unit)
    if any(item.path.match(f"tests/{name}") for name in SLOW):
        item.add_marker(pytest.mark.slow)
    fixtures = getattr(item, "fixturenames", ())
    if "[fleet" in item.name or "-fleet" in item.name or "shared_fleet" in fixtures:
        item.add_marker(pytest.mark.fleet)
    if "browser" in item.path.stem:
        item.add_marker(pytest.mark.browser)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first; the tests of a file keep their order."""
    ranks = {TESTS / name: rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def pytest_collection_finish() -> None:
    """Freeze imported objects, so that the garbage collector does not scan them repeatedly."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _heed_ctrl_c() -> None:
    """Restore the handler of SIGINT, which background jobs and their children ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_fleet() -> Iterator[Fleet]:
    """Yield PostgreSQL and S3, started by the first test that needs them."""
    from helpers.backends import fleet

    with fleet() as started:
        yield started


@pytest.fixture(scope="session")
def overconfident() -> CalibrationSet:
    return draw(1200, 5)


@pytest.fixture(params=available_devices())
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)
