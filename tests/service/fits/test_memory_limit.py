"""A fit that would need more memory than a worker may use is refused when it is requested."""

from __future__ import annotations

import io
import resource
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.live_service import in_process, running, wait_until

from calibrators.fitting.evaluation import memory_bytes
from calibrators.registry import make_recipe
from service.errors import TooLarge
from service.fits.execution import MAX_MAP_BYTES, FitAttempt, check_map_size, run
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
        assert "and 2,000 evaluation rows" in refused.json()["detail"]


def test_a_worker_refuses_before_it_loads() -> None:
    """The limit may be lower than when the fit was requested."""
    known = dict.fromkeys(field.name for field in fields(Dataset))
    data = Dataset(**{**known, "rows": ROWS, "classes": CLASSES})
    order = {"methods": [{"method": "temperature", "params": {}}], "seed": 0, "held_out": None}
    job = FitAttempt(SimpleNamespace(order=order, evaluation=None), data, None, 0.0)  # type: ignore[arg-type]
    ending = run(job, None, Calm(), device="cpu", time_limit=9, memory_limit=1000)  # type: ignore[arg-type]
    assert ending is not None
    assert ending.error is not None
    assert ending.error["code"] == "too_much_memory"


class Calm:
    """Hooks that ignore everything."""

    def progress(self, told: dict[str, Any]) -> None: ...

    def stop(self) -> None: ...


OVER_LIMIT = """
import numpy as np
from service.worker.startup import limit_memory

limit_memory(64 << 20)
np.ones(64 << 20, np.uint8).sum()
try:
    np.ones(512 << 20, np.uint8)
except MemoryError:
    print("refused")
"""


def test_a_process_gets_no_more_memory_than_a_fit_can_need() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", OVER_LIMIT], capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.strip() == "refused", ran.stderr


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_workers_are_limited_and_the_server_is_not(tmp_path: Path) -> None:
    with running(tmp_path, CALIBRD_FIT_MEMORY_BYTES=str(1 << 30)) as service:
        pid = service.process.pid

        def limits() -> list[int]:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            found = [resource.prlimit(int(one), resource.RLIMIT_DATA)[0] for one in children]
            return [one for one in found if one != resource.RLIM_INFINITY]

        wait_until(lambda: len(limits()) == 1)
        assert (1 << 31) < limits()[0] < (1 << 33)
        assert resource.prlimit(pid, resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY


def test_the_map_counts_as_well() -> None:
    few = memory_bytes(make_recipe("histogram_one_vs_rest", {}), 50, 2000)
    many = memory_bytes(make_recipe("histogram_one_vs_rest", {"bins": 10_000}), 50, 2000)
    assert few < 1 << 28
    assert many > 3 << 30


def test_a_map_that_is_too_large_is_not_kept() -> None:
    recipe = make_recipe("histogram_one_vs_rest", {})
    check_map_size(recipe, MAX_MAP_BYTES)
    with pytest.raises(TooLarge, match="the map of 'histogram_one_vs_rest' takes 64 MiB"):
        check_map_size(recipe, MAX_MAP_BYTES + 1)
