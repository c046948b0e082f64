"""A fit that would need more memory than a worker may use is refused when it is ordered."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from helpers.live_service import in_process

from calibrators.fitting.evaluation import memory_bytes
from calibrators.registry import make_recipe

ROWS, CLASSES = 200, 400


def body() -> bytes:
    rng = np.random.default_rng(0)
    file = io.BytesIO()
    logits = rng.normal(size=(ROWS, CLASSES)).astype(np.float32)
    np.savez(file, logits=logits, labels=rng.integers(CLASSES, size=ROWS))
    return file.getvalue()


def test_a_fit_that_needs_too_much_memory_is_refused_at_once(tmp_path: Path) -> None:
    needed = memory_bytes(make_recipe("matrix", {}), ROWS, CLASSES)
    limit = needed - 1
    assert memory_bytes(make_recipe("temperature", {}), ROWS, CLASSES) < limit
    with in_process(tmp_path, fit_memory_bytes=limit) as service:
        sent = service.post(
            "/v1/datasets?kind=logits",
            content=body(),
            headers={"content-type": "application/x-npz"},
        )
        assert sent.status_code in (200, 201), sent.text

        def ordered(method: str) -> Any:
            order = {"dataset": sent.json()["id"], "methods": [{"method": method}]}
            return service.post("/v1/calibrators/wide/fits", json=order)

        refused = ordered("matrix")
        assert (refused.status_code, refused.json()["code"]) == (413, "too_much_memory")
        assert refused.json()["needed"] == needed
        assert refused.json()["limit"] == limit
        assert "200 rows of 400 classes" in refused.json()["detail"]
        assert service.get("/v1/calibrators/wide").status_code == 404
        assert ordered("temperature").status_code == 202
