"""The body that registers a map which was fitted elsewhere."""

from __future__ import annotations

import base64
from typing import Any

from calibrators import archive
from calibrators.base import CalibrationMap
from calibrators.methods.temperature import TemperatureMap


def registration(fitted: CalibrationMap, **facts: Any) -> dict[str, Any]:
    """The body that registers a map, with its report, model or other facts."""
    return {"map": base64.b64encode(archive.dump(fitted)).decode(), **facts}


def temperature_registration(temperature: float, k: int = 3, **facts: Any) -> dict[str, Any]:
    """The body that registers a map of so many classes with this temperature."""
    return registration(TemperatureMap(k=k, temperature=temperature), **facts)
