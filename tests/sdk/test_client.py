"""Fit, promote, predict and look, with both clients."""

from __future__ import annotations

import asyncio
import inspect

import numpy as np
import pytest
from live_service import Running, sample

import calibrd
from calibrd.calls import Calls
from calibrd.flows import call

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
    with pytest.raises(ValueError, match="first@1 is no version of 'second'"):
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


def test_both_clients_have_every_call_and_say_what_it_gives(service: Running) -> None:
    names = [name for name in dir(Calls) if isinstance(inspect.getattr_static(Calls, name), call)]
    assert {"fit", "wait", "upload", "versions", "promote", "rollback", "history"} <= {*names}
    with calibrd.Client(service.url) as client:
        for name in names:
            method = getattr(client, name)
            assert method.__doc__
            assert "Flow" not in str(inspect.signature(method))
            assert "self" not in inspect.signature(method).parameters
