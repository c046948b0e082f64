"""A fit that would need more memory than a worker may use is refused when it is ordered."""

from __future__ import annotations

import io
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from helpers.live_service import in_process

from calibrators.fitting.evaluation import memory_bytes
from calibrators.registry import make_recipe
from service.fits.execution import Job, run
from service.storage.records import Dataset

ROWS, CLASSES = 200, 400


def body(rows: int = ROWS) -> bytes:
    rng = np.random.default_rng(0)
    file = io.BytesIO()
    logits = rng.normal(size=(rows, CLASSES)).astype(np.float32)
    np.savez(file, logits=logits, labels=rng.integers(CLASSES, size=rows))
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


def test_the_evaluation_dataset_counts(tmp_path: Path) -> None:
    alone = memory_bytes(make_recipe("temperature", {}), ROWS, CLASSES)
    with in_process(tmp_path, fit_memory_bytes=alone) as service:
        ids = [
            service.post(
                "/v1/datasets?kind=logits",
                content=body(rows),
                headers={"content-type": "application/x-npz"},
            ).json()["id"]
            for rows in (ROWS, 2000)
        ]
        order = {"dataset": ids[0], "evaluation": ids[1], "methods": [{"method": "temperature"}]}
        refused = service.post("/v1/calibrators/wide/fits", json=order)
        assert (refused.status_code, refused.json()["code"]) == (413, "too_much_memory")
        assert "judged on 2,000 others" in refused.json()["detail"]


def test_a_worker_refuses_before_it_loads() -> None:
    """The limit may be lower than when the fit was ordered."""
    known = dict.fromkeys(field.name for field in fields(Dataset))
    data = Dataset(**{**known, "rows": ROWS, "classes": CLASSES})
    order = {"methods": [{"method": "temperature", "params": {}}], "seed": 0, "held_out": None}
    job = Job(SimpleNamespace(order=order, evaluation=None), data, None, 0.0)  # type: ignore[arg-type]
    ending = run(job, None, Calm(), device="cpu", time_limit=9, memory_limit=1000)  # type: ignore[arg-type]
    assert ending is not None
    assert ending.error is not None
    assert ending.error["code"] == "too_much_memory"


class Calm:
    """Hooks of a fit that nobody watches."""

    def progress(self, told: dict[str, Any]) -> None: ...

    def stop(self) -> None: ...
