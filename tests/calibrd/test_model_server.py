"""The example server applies the production map, follows the alias, and survives outages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
from helpers.database_servers import free_port
from helpers.live_service import ROOT, running, sample, wait_until

import calibrd


def test_it_calibrates_follows_the_alias_and_survives_an_outage(tmp_path: Path) -> None:
    logits, labels = sample(classes=10)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--app-dir", "examples", "model_server:app"]
    with running(tmp_path / "data") as service, calibrd.Client(service.url) as client:
        for method in ("temperature", "identity"):
            client.fit("fashion", logits, labels, method=method, progress=False)
        client.promote("fashion", 1)
        server = subprocess.Popen(
            [*command, "--port", str(port), "--log-level", "warning"],
            cwd=ROOT,
            env=os.environ | {"CALIBRD_URL": service.url, "REFRESH": "0.3"},
        )
        try:

            def ask() -> dict[str, object] | None:
                try:
                    answer = httpx.post(
                        f"http://127.0.0.1:{port}/classify", json={"pixels": [0.1, 0.9]}
                    )
                except httpx.TransportError:
                    return None
                return dict(answer.json())

            first = wait_until(ask)
            assert first["version"] == 1
            client.promote("fashion", 2, force=True, reason="a test")
            second = wait_until(lambda: found if (found := ask())["version"] == 2 else None)
            assert second["class"] == first["class"]
            assert second["probability"] > first["probability"]  # the model alone is overconfident
            service.process.kill()
            service.process.wait()
            assert ask() == second
        finally:
            server.terminate()
            server.wait(20)
