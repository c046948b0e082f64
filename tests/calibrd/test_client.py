"""Fit, promote, predict and read with both clients."""

from __future__ import annotations

import asyncio
import inspect
import os
import pydoc
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest
from helpers.faulty_http_proxy import faulty_line
from helpers.live_service import Running, sample
from helpers.local_maps import fitted

import calibrd
from calibrd.api import Calls

LOGITS, LABELS = sample()


def test_fit_promote_predict(client: calibrd.Client) -> None:
    version = client.fit("first", LOGITS, LABELS, method="temperature", progress=False)
    assert (version.number, version.method, version.verdict) == (1, "temperature", "improved")
    assert version.report is not None
    assert version.report.verdict == version.verdict
    alias = client.promote("first", version)
    assert (alias.version, alias.revision) == (1, 1)
    probabilities = client.predict("first@production", LOGITS)
    assert probabilities.shape == LOGITS.shape
    assert probabilities.sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert [move.to_version for move in client.history("first")] == [1]
    assert client.promote("first", "production", alias="canary").version == 1
    with pytest.raises(ValueError, match="first@1 is not a version of 'second'"):
        client.promote("second", version)


def test_the_same_awaited(service: Running) -> None:
    async def work() -> tuple[calibrd.Version, np.ndarray]:
        async with calibrd.AsyncClient(service.url) as client:
            version = await client.fit(
                "awaited", LOGITS, LABELS, method="temperature", progress=False
            )
            await client.promote("awaited", version.number)
            return version, await client.predict("awaited", LOGITS)

    version, probabilities = asyncio.run(work())
    assert version.verdict == "improved"
    assert probabilities.shape == LOGITS.shape


def test_both_clients_have_every_call_with_its_return_type(service: Running) -> None:
    names = [name for name in dir(Calls) if hasattr(getattr(Calls, name), "flow")]
    assert {"fit", "wait", "upload", "versions", "promote", "rollback", "history"} <= {*names}
    with calibrd.Client(service.url) as client:
        for name in names:
            method = getattr(client, name)
            assert method.__doc__
            assert "Flow" not in str(inspect.signature(method))
            assert "self" not in inspect.signature(method).parameters


@pytest.mark.parametrize("kind", [calibrd.Client, calibrd.AsyncClient])
def test_calls_look_like_methods_on_the_class(kind: type) -> None:
    assert list(inspect.signature(kind.rollback).parameters)[:2] == ["self", "name"]
    assert kind.rollback.__doc__
    shown = pydoc.plaintext.document(kind)
    assert "rollback(self, name: 'str', *, alias: 'str' = 'production'" in shown
    double = mock.create_autospec(kind, instance=True)
    double.rollback("a", reason="b")
    double.rollback.assert_called_with(name="a", reason="b")
    with pytest.raises(TypeError, match="rason"):
        double.rollback("a", rason="b")


BOTH_SIDES = """
import os, sys, time, calibrd
client = calibrd.Client(sys.argv[1])
client.get_version("both-sides@1")
child = os.fork()
mine = 1 if child else 2
time.sleep(0 if child else 0.002)
for _ in range(20):
    found = client.get_version(f"both-sides@{mine}").number
    if found != mine:
        print(f"asked for {mine}, was given {found}", flush=True)
        os._exit(1)
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_both_sides_of_a_fork_get_their_own_responses(client: calibrd.Client) -> None:
    for temperature in (2.0, 3.0):
        client.register("both-sides", fitted(temperature))
    with faulty_line(client.url) as line:
        line.before = lambda asked: time.sleep(0.005)  # both send requests at the same time
        done = subprocess.run(
            [sys.executable, "-c", BOTH_SIDES, line.url], capture_output=True, text=True, timeout=60
        )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
