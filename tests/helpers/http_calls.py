"""Bodies for the API, uploads, fits and refusals."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np

from helpers.format_samples import npz
from helpers.live_service import NPZ


def json_of(**arrays: np.ndarray) -> bytes:
    """A dataset as JSON."""
    return json.dumps({name: array.tolist() for name, array in arrays.items()}).encode()


def upload(client: httpx.Client, **arrays: np.ndarray) -> dict[str, Any]:
    """The dataset of these arrays."""
    answer = client.post("/v1/datasets", content=npz(**arrays), headers=NPZ)
    return good(answer)


def fitted(client: httpx.Client, name: str, **order: Any) -> dict[str, Any]:
    """The fit of an order, after it has ended."""
    answer = client.post(f"/v1/calibrators/{name}/fits", json=order, headers={"Prefer": "wait=30"})
    fit = good(answer)
    assert fit["status"] in ("succeeded", "failed"), fit
    return fit


def good(answer: httpx.Response) -> Any:
    """What was answered, and well."""
    assert answer.is_success, answer.text
    return answer.json()


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """The status and the code of a refusal."""
    return answer.status_code, answer.json()["code"]
