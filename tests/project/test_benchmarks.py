"""The benchmark of predict starts its own server, which needs what the service needs."""

from __future__ import annotations

import httpx

from benchmarks.serving import server
from benchmarks.serving_ours import CLASSES


def test_the_server_of_the_benchmark_predicts() -> None:
    with server("ours") as port:
        url = f"http://127.0.0.1:{port}/v1/calibrators/bench@1/predict"
        answer = httpx.post(url, json={"logits": [[0.0] * CLASSES]}, timeout=60)
    assert answer.status_code == 200
    assert len(answer.json()["probabilities"][0]) == CLASSES
