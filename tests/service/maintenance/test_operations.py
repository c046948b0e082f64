"""Health, metrics, logs, start and stop, memory, and the modules of the API process."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import psutil
import pytest
from helpers.live_service import NPZ, ROOT, in_process, npz, running, sample, wait_until
from helpers.registration import temperature_registration

from service.cli.arguments import run
from service.maintenance.readiness import OK, Probe, Readiness

MEGABYTE = 1 << 20


def test_health_and_readiness(client, local):
    assert client.get("/healthz").json() == {"status": "ok"}
    ready = wait_until(lambda: (r := client.get("/readyz")).status_code == 200 and r)
    assert ready.json()["workers"] == "ok"
    without_workers = local.get("/readyz")
    assert without_workers.status_code == 503
    assert without_workers.json() == {
        "status": "not ready",
        "database": "ok",
        "blobs": "ok",
        "workers": "no live worker: fits have to wait",
    }


def test_metrics_count_requests_fits_and_maps(client):
    body = npz(*sample(1000))
    url = "/v1/calibrators/metered/fits?method=temperature"
    client.post(url, content=body, headers=NPZ | {"Prefer": "wait=60"})
    for _ in range(3):
        client.get("/v1/calibrators/metered@1/predict?logits=1,2,3,4,5")
    text = client.get("/metrics").text
    route = 'route="/v1/calibrators/{name}@{ref}/predict"'
    assert f'calibrd_requests_total{{method="GET",{route},status="200"}} 3.0' in text
    assert 'calibrd_fits{queue="fit.cpu",status="succeeded"}' in text
    assert "calibrd_queue_depth" in text
    assert "calibrd_database_readable 1.0" in text
    assert "calibrd_waiting_statistics 0.0" in text
    assert "calibrd_fit_seconds_total" in text
    assert "calibrd_map_cache_lookups_total" in text
    assert "calibrd_request_seconds_bucket" in text


def test_api_process_never_loads_torch(service, client):
    body = npz(*sample(1000))
    url = "/v1/calibrators/light/fits?method=smart&method=auto"
    client.post(url, content=body, headers=NPZ | {"Prefer": "wait=60"})
    client.post("/v1/calibrators/light@1/predict", content=body, headers=NPZ)
    for form in ("", ".html", ".svg", ".png"):
        assert client.get(f"/v1/calibrators/light/versions/1/report{form}").status_code == 200
    assert client.get("/v1/methods").status_code == 200
    libraries = [mapped.path for mapped in psutil.Process(service.process.pid).memory_maps()]
    assert any("numpy" in path for path in libraries)
    assert not [path for path in libraries if "/torch/" in path]


def test_importing_the_app_loads_no_torch():
    code = "import sys, service.app; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def uncompressed_npz(path: Path, megabytes: int) -> None:
    """Write an npz of a number of megabytes without holding it in memory."""
    columns = 1000
    rows = megabytes * MEGABYTE // (4 * columns)
    block = np.random.default_rng(0).normal(size=(1000, columns)).astype(np.float32)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("logits.npy", "w", force_zip64=True) as member:
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows, columns)}
            np.lib.format.write_array_header_1_0(member, header)
            for start in range(0, rows, 1000):
                member.write(block[: min(1000, rows - start)].tobytes())
        with archive.open("labels.npy", "w") as member:
            np.lib.format.write_array(member, np.arange(rows) % columns)


def test_upload_of_200_megabytes_takes_less_than_32_of_memory(tmp_path):
    body = tmp_path / "large.npz"
    uncompressed_npz(body, 200)
    with running(tmp_path / "data", "--workers", "0") as started, started.client() as client:
        client.post("/v1/datasets", content=npz(*sample(1000)), headers=NPZ)
        process = psutil.Process(started.process.pid)
        before = process.memory_info().rss
        largest = _peak(started.process.pid, reset=True)
        with body.open("rb") as file:
            answer = client.post("/v1/datasets", content=file, headers=NPZ, timeout=120)
        assert answer.status_code == 201, answer.text
        largest = _peak(started.process.pid)
        assert answer.json()["bytes"] > 200 * MEGABYTE
        assert largest - before < 32 * MEGABYTE, (largest - before) / MEGABYTE


def _peak(pid: int, *, reset: bool = False) -> int:
    """Return the peak memory of a process since the last reset."""
    if reset:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def test_predict_continues_while_the_database_and_the_blobs_are_unavailable(tmp_path):
    with in_process(tmp_path) as local:
        body = temperature_registration(2.0, k=5)
        local.post("/v1/calibrators/c/versions", json=body)
        moved = {"version": 1, "force": True, "reason": "test"}
        local.put("/v1/calibrators/c/aliases/production", json=moved)
        url = "/v1/calibrators/c@production/predict?logits=3,1,0,0,0"
        before = local.get(url).json()
        parts = local.app.state.parts
        parts.database.close()
        for path in tmp_path.glob("calibrd.db*"):
            path.unlink()
        (tmp_path / "calibrd.db").mkdir()
        shutil.rmtree(tmp_path / "blobs")
        for _ in range(3):
            assert local.get(url).json() == before
        missing = local.get("/v1/calibrators/c@1/predict?logits=3,1,0,0,0")
        assert (missing.status_code, missing.json()["code"]) == (503, "database_unavailable")
        assert local.get("/readyz").json()["database"] == "does not respond"
        assert local.get("/healthz").status_code == 200


def test_stop_requeues_a_running_fit_and_the_next_start_finishes_it(tmp_path):
    query = 'method=smart&params={"steps":1500}'
    with running(tmp_path) as started:
        with started.client() as client:
            url = f"/v1/calibrators/c/fits?{query}"
            fit = client.post(url, content=npz(*sample(3000)), headers=NPZ).json()
            wait_until(lambda: client.get(f"/v1/fits/{fit['id']}").json()["progress"])
        children = psutil.Process(started.process.pid).children(recursive=True)
        assert started.stop() == 0
        assert not [child for child in children if child.is_running()]
        assert "Traceback" not in started.log.read_text()
    database = sqlite3.connect(tmp_path / "calibrd.db")
    assert database.execute("SELECT status, attempt FROM fits").fetchall() == [("queued", 0)]
    database.close()
    with running(tmp_path) as started, started.client() as client:
        done = client.get(f"/v1/fits/{fit['id']}", headers={"Prefer": "wait=60"}).json()
        assert (done["status"], done["attempt"], done["versions"]) == ("succeeded", 1, [1])


def test_killed_api_leaves_no_worker_behind(tmp_path):
    with running(tmp_path) as started:
        wait_until(lambda: psutil.Process(started.process.pid).children())
        children = psutil.Process(started.process.pid).children(recursive=True)
        os.kill(started.process.pid, signal.SIGKILL)
        started.process.wait()
        wait_until(lambda: not any(child.is_running() for child in children), 15)


def test_port_in_use_is_reported_in_one_line(service, tmp_path):
    port = service.url.rpartition(":")[2]
    command = [sys.executable, "-m", "service", "serve", "--port", port]
    done = subprocess.run(
        [*command, "--data-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "cannot listen on" in done.stderr
    assert "Traceback" not in done.stderr


def test_logs_are_json_with_request_ids_and_no_secrets(tmp_path):
    token = "cal_0123456789ab_" + "f" * 48
    with running(tmp_path, "--workers", "0") as started, started.client(token) as client:
        answer = client.get("/v1/calibrators?cursor=abc", headers={"X-Request-Id": "mine-1"})
        assert answer.headers["x-request-id"] == "mine-1"
    lines = [json.loads(line) for line in started.log.read_text().splitlines()]
    (line,) = [line for line in lines if line.get("request_id") == "mine-1"]
    assert (line["method"], line["status"]) == ("GET", 401)
    assert token not in started.log.read_text()


@pytest.mark.parametrize("arguments", [(), ("dance",), ("serve", "--colour", "red")])
def test_wrong_command_lines_show_the_usage(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        run(arguments)
    assert ended.value.code == 2
    assert "usage: python -m service" in capsys.readouterr().err


def test_many_readiness_checks_share_one_probe(local) -> None:
    """Anyone may send them, and they do not wait for turns."""
    parts, probes = local.app.state.parts, []
    probe = Probe(parts.database, parts.blobs)
    original = probe._try

    def counted() -> Readiness:
        probes.append(1)
        return original()

    probe._try = counted

    async def ask() -> set[str]:
        found = await asyncio.gather(*(probe.read_async() for _ in range(100)))
        return {one.database for one in found}

    assert asyncio.run(ask()) == {OK}
    assert len(probes) == 1
