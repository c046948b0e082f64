"""A model server that calibrates in its own process, with the production map.

    pip install fastapi uvicorn
    CALIBRD_URL=http://127.0.0.1:8000 uvicorn --app-dir examples model_server:app --port 9000

    curl -s localhost:9000/classify --json '{"pixels": [0.1, 0.9, 0.3]}'

The map follows its alias: if another version is promoted, the server uses it within REFRESH
seconds. While the calibration service is unreachable, the server keeps its last map; it can also
start with that map.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
from fastapi import FastAPI
from pydantic import BaseModel

import calibrd

MAP = os.environ.get("MAP", "fashion@production")
REFRESH = float(os.environ.get("REFRESH", "30"))
CLASSES = 10


class Image(BaseModel):
    """The image to classify."""

    pixels: list[float]


def model(pixels: list[float]) -> np.ndarray:
    """Return logits (1, 10); replace this with your network."""
    weights = np.random.default_rng(len(pixels)).normal(size=(len(pixels), CLASSES))
    return np.array([pixels]) @ weights


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the map at startup and close it at shutdown."""
    async with calibrd.AsyncClient() as client:
        with await client.load(MAP, refresh=REFRESH) as app.state.calibration:
            yield


app = FastAPI(lifespan=lifespan)


@app.post("/classify")
def classify(image: Image) -> dict[str, object]:
    """Return the most likely class, its calibrated probability, and the version of the map."""
    calibration = app.state.calibration
    (probabilities,) = calibration.apply(model(image.pixels))
    best = int(probabilities.argmax())
    return {
        "class": best,
        "probability": float(probabilities[best]),
        "version": calibration.version,
    }
