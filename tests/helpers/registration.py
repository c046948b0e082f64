"""Bodies that register a map fitted elsewhere."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from calibrators import archive
from calibrators.base import CalibrationMap
from calibrators.methods.smart import SmartMap
from calibrators.methods.temperature import TemperatureMap


def registration(fitted: CalibrationMap, **facts: Any) -> dict[str, Any]:
    """Return the body that registers a map, with its report, model and other fields."""
    return {"map": base64.b64encode(archive.dump(fitted)).decode(), **facts}


def temperature_registration(temperature: float, k: int = 3, **facts: Any) -> dict[str, Any]:
    """Return the body that registers a temperature map with a number of classes."""
    return registration(TemperatureMap(k=k, temperature=temperature), **facts)


def costly_map(hidden: int) -> SmartMap:
    """Return a SMART map of two classes with a number of hidden units."""
    rng = np.random.default_rng(0)
    return SmartMap(
        k=2,
        base_temperature=1.0,
        indicator="margin",
        centre=np.zeros(1),
        spread=np.ones(1),
        w1=rng.normal(size=(1, hidden)),
        b1=rng.normal(size=hidden),
        w2=rng.normal(size=hidden) / hidden,
        b2=0.5,
    )
