"""One object of each kind in a workspace, created over HTTP."""

from __future__ import annotations

import base64
import functools
import hashlib
from dataclasses import dataclass
from typing import Any

import httpx

from calibrators import CalibrationSet
from calibrators.fitting.evaluation import fit_and_judge
from calibrators.methods.temperature import TemperatureScaling
from helpers.live_service import NPZ, npz, sample
from helpers.registration import registration
from service.runs.schemas import OpenRunIn

CALIBRATOR = "fashion"
ALIAS = "production"
CLASSES = 5
RUN = "resnet-cifar10"
SESSION = "job-1207"
IDEMPOTENCY_KEY = "the-first-order"


@dataclass(frozen=True)
class Things:
    """The ids of the objects that a caller created."""

    dataset: str
    sha256: str
    upload: str
    fit: str
    version: dict[str, Any]
    key: str
    run: str


def dataset_body() -> bytes:
    """Return the body of a small dataset."""
    return npz(*sample(60, CLASSES))


@functools.cache
def fitted_elsewhere() -> dict[str, Any]:
    """Return the body that registers a map with its report and judged rows."""
    judged = fit_and_judge(TemperatureScaling(), CalibrationSet(*sample(1200, CLASSES)))
    rows = base64.b64encode(judged.rows.dump()).decode()
    facts = {"report": judged.report.to_dict(), "judged_rows": rows, "model": "sha256:0f1e"}
    return registration(judged.map, **facts)


def make_one_of_each(client: httpx.Client) -> Things:
    """Create a dataset, an upload with a part, a fit, a version, an alias, a key and a run."""
    body = dataset_body()
    dataset = _made(client.post("/v1/datasets", content=body, headers=NPZ))["id"]
    upload = _made(client.post("/v1/datasets?upload=parts"))["id"]
    _made(client.put(f"/v1/datasets/{upload}/parts/1", content=body[:100]))
    version = _made(client.post(f"/v1/calibrators/{CALIBRATOR}/versions", json=fitted_elsewhere()))
    url = f"/v1/calibrators/{CALIBRATOR}/aliases/{ALIAS}"
    _made(client.put(url, json={"version": version["number"]}))
    key = _made(client.post("/v1/keys", json={"name": "spare", "scopes": ["predict"]}))["key"]
    client.patch(f"/v1/runs/{RUN}", json={"archived": False})  # unless it exists
    run = _made(client.post("/v1/runs", json=run_body()))["name"]
    digest = hashlib.sha256(body).hexdigest()
    return Things(
        dataset=dataset,
        sha256=digest,
        upload=upload,
        fit=order_fit(client, f"sha256:{digest}")["id"],
        version=version,
        key=key["id"],
        run=run,
    )


def run_body() -> dict[str, Any]:
    """Return the body that opens the only session of the only run."""
    return {**OpenRunIn.example(), "name": RUN, "session": SESSION}


def order_fit(client: httpx.Client, dataset: str) -> dict[str, Any]:
    """Start a fit with a fixed Idempotency-Key."""
    return _made(
        client.post(
            f"/v1/calibrators/{CALIBRATOR}/fits",
            json={"dataset": dataset, "method": "temperature"},
            headers={"Idempotency-Key": IDEMPOTENCY_KEY},
        )
    )


def _made(answer: httpx.Response) -> dict[str, Any]:
    assert answer.is_success, answer.text
    return answer.json()
