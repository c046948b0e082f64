"""Fixtures that several tests use."""

from __future__ import annotations

import pytest
from samples import draw

from calibrators import CalibrationSet
from calibrators.devices import available_devices


@pytest.fixture(scope="session")
def overconfident() -> CalibrationSet:
    return draw(1200, 5)


@pytest.fixture(params=available_devices())
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)
