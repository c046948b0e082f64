"""The default method on data of two classes, from upload to ONNX file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.live_service import NPZ, npz, running


@pytest.mark.parametrize("columns", [1, 2])
def test_the_default_method_fits_two_classes(tmp_path: Path, columns: int) -> None:
    rng = np.random.default_rng(0)
    odds = rng.normal(size=2000) * 4
    labels = (rng.random(2000) < 1 / (1 + np.exp(-odds / 2))).astype(np.int64)
    logits = odds[:, np.newaxis] if columns == 1 else np.stack([0 * odds, odds], axis=1)
    with running(tmp_path) as service, service.client() as client:
        ended = client.post(
            "/v1/calibrators/fraud/fits",
            content=npz(logits.astype(np.float32), labels),
            headers={**NPZ, "Prefer": "wait=60"},
        )
        assert ended.json()["status"] == "succeeded", ended.text
        version = client.get("/v1/calibrators/fraud/versions/1").json()
        assert version["verdict"] == "improved"
        assert client.get("/v1/calibrators/fraud/versions/1/onnx").status_code == 200
