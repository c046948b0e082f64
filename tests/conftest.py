"""Fixtures that several tests use."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from samples import draw

from calibrators import CalibrationSet
from calibrators.devices import available_devices

sys.path.insert(0, str(Path(__file__).parent / "service"))  # helpers that tests of faults use too

if TYPE_CHECKING:
    from backends import Fleet

TESTS = Path(__file__).parent
# a file that takes long and begins last leaves the other processes of `make test` without work
LONGEST_FIRST = (
    "faults/test_lost_workers.py",
    "sdk/test_examples.py",
    "faults/test_database_restarts.py",
    "test_contract.py",
    "sdk/test_documents.py",
    "service/test_operations.py",
    "service/storage/test_jobs.py",
    "service/storage/test_partition.py",
    "faults/test_racing_promotes.py",
    "sdk/test_wheel.py",
    "service/storage/test_lifecycle.py",
    "service/test_documentation.py",
    "service/test_generated_calls.py",
    "sdk/test_killed_service.py",
    "faults/test_killed_api.py",
    "test_auto.py",
    "service/storage/test_starters.py",
    "service/test_command_line.py",
    "service/test_read_only.py",
    "faults/test_delivery.py",
    "sdk/test_commands.py",
    "service/storage/test_backup.py",
    "sdk/test_local_map_away.py",
    "service/test_command_line_keys.py",
    "service/storage/test_workspaces.py",
    "service/storage/test_aliases.py",
    "test_demo.py",
    "faults/test_full_disk.py",
    "sdk/test_model_server.py",
    "service/storage/test_sweeping.py",
    "service/storage/test_keys.py",
    "sdk/test_every_route_reached.py",
    "service/test_supervisor.py",
    "service/storage/test_upkeep.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the longest files begin first; the tests of a file stay in their order."""
    missing = [name for name in LONGEST_FIRST if not (TESTS / name).exists()]
    if missing:
        raise pytest.UsageError(f"LONGEST_FIRST names {missing[0]}, which is not there")
    ranks = {TESTS / name: rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


@pytest.fixture(scope="session", autouse=True)
def _heed_ctrl_c() -> None:
    """A job in the background is started with SIGINT ignored, and so is all that it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_fleet() -> Iterator[Fleet]:
    """PostgreSQL and S3, started when the first test asks for them."""
    from backends import fleet

    with fleet() as started:
        yield started


@pytest.fixture(scope="session")
def overconfident() -> CalibrationSet:
    return draw(1200, 5)


@pytest.fixture(params=available_devices())
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)
