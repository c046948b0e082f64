"""Queueing delays of fits: alone, behind other fits, behind cancelled fits."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import httpx

from benchmarks.capacity_site import ROOT, Site
from benchmarks.output import Row

ALONE = 20
MANY, METHODS = 200, 20
OWN = "/v1/calibrators/bench/fits"
WAIT = {"Prefer": "wait=20"}
VARIABLES = {"CALIBRD_MAX_OPEN_FITS": "1000"}


def waits(site: Site, dataset: str, quick: bool) -> Row:
    """Return the seconds from request to start with one idle worker, in several situations."""
    alone = [_waited(site.client, _ordered(site.client, dataset)) for _ in range(ALONE)]
    many = 20 if quick else MANY
    with _other_workspace(site) as other:
        theirs = _copied(other)
        ids = [_ordered(site.client, dataset, METHODS)["id"] for _ in range(many)]
        first, second = (_ordered(other, theirs) for _ in range(2))
        behind, then = _waited(other, first), _waited(other, second)
        done = site.client.get("/v1/fits", params={"status": "succeeded"}).json()["items"]
        longest = max(_seconds(one, "started_at", "finished_at") for one in done)
        for id in ids:
            site.client.delete(f"/v1/fits/{id}")
        after = _waited(site.client, _ordered(site.client, dataset))
    return {
        "median delay from submission to start, ms": 1000 * statistics.median(alone),
        "wait for a workspace's first fit while another workspace has "
        f"{many} fits of {METHODS} methods queued, s": behind,
        "wait for that workspace's second fit, s": then,
        "longest fit that ran in the meantime, s": longest,
        f"a fit behind {many} cancelled ones, s": after,
    }


def _ordered(client: httpx.Client, dataset: str, methods: int = 1) -> dict[str, Any]:
    order = {"dataset": dataset, "methods": [{"method": "temperature"}] * methods}
    answer = client.post(OWN, json=order)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def _waited(client: httpx.Client, fit: dict[str, Any]) -> float:
    """Wait for a fit to end; return the seconds until it started, by the database's clock."""
    while fit["status"] in ("queued", "running"):
        fit = client.get(f"/v1/fits/{fit['id']}", headers=WAIT).json()
    return _seconds(fit, "created_at", "started_at")


def _seconds(fit: dict[str, Any], since: str, until: str) -> float:
    began, ended = (datetime.fromisoformat(fit[one]) for one in (since, until))
    return (ended - began).total_seconds()


@contextmanager
def _other_workspace(site: Site) -> Iterator[httpx.Client]:
    """Return a client of another workspace; ours then needs a key too, and gets one."""
    ours, theirs = (_key(site, name) for name in ("default", "other"))
    site.client.headers["Authorization"] = f"Bearer {ours}"
    with site.running.client(theirs) as client:
        # wait until the keys are in effect
        while client.get("/v1/fits").status_code != httpx.codes.OK:
            time.sleep(0.5)
        yield client


def _key(site: Site, workspace: str) -> str:
    command = (sys.executable, "-m", "service", "keys", "create", "--scopes", "admin,fit")
    environment = {**os.environ, **site.variables}
    return subprocess.run(
        (*command, "--workspace", workspace),
        env=environment,
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def _copied(client: httpx.Client) -> str:
    """Upload a small dataset to a workspace; return its id."""
    labels = [0, 1, 2, 1] * 250
    logits = [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0], [1.0, 0.0, 0.0]] * 250
    answer = client.post("/v1/datasets", json={"logits": logits, "labels": labels})
    answer.raise_for_status()
    return str(answer.json()["id"])
