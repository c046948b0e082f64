"""Shuffled labels: every way to see a version names them, and promotion needs force."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.live_service import Running, sample

import calibrd
from calibrd import errors
from calibrd.cli.arguments import run

WORDS = "the labels are not predicted measurably better than by chance"


@pytest.fixture
def shuffled(client: calibrd.Client) -> calibrd.Version:
    """A version fitted on labels of other rows."""
    logits, labels = sample(2000)
    order = np.random.default_rng(0).permutation(len(labels))
    return client.fit("shuffled", logits, labels[order], method="temperature")


def test_the_sdk(client: calibrd.Client, shuffled: calibrd.Version) -> None:
    assert shuffled.verdict == "at_chance"
    assert WORDS in str(shuffled.verdict_sentence)
    assert WORDS in shuffled.summary()
    assert WORDS in client.report(shuffled).summary()
    with pytest.raises(errors.Conflict) as refused:
        client.promote("shuffled", shuffled)
    assert refused.value.code == "needs_force"
    assert f"was judged at_chance ({WORDS}" in str(refused.value.detail)
    client.promote("shuffled", shuffled, force=True, reason="a test of the pipeline")
    assert client.history("shuffled")[0].forced


def test_the_command_line(
    service: Running,
    shuffled: calibrd.Version,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    at = ["--url", service.url, "--json"]
    number = str(shuffled.number)
    assert run(["promote", "shuffled", number, "--alias", "other", *at]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["error"]["code"] == "needs_force"
    logits, labels = sample(2000)
    path, fitted = tmp_path / "rows.npz", tmp_path / "map.calibrd"
    np.savez(path, logits=logits, labels=np.random.default_rng(0).permutation(labels))
    assert run(["fit", str(path), "--method", "temperature", "--out", str(fitted)]) == 0
    assert f"verdict: at_chance ({WORDS}" in capsys.readouterr().out
    np.savez(path, logits=logits, labels=np.random.default_rng(1).permutation(labels))
    gate = ["gate", str(path), "--map", str(fitted), "--max-calibration-error", "0.5"]
    assert run(gate) == 0
    assert f"warning: {WORDS}" in capsys.readouterr().err


def test_the_page(service: Running, shuffled: calibrd.Version) -> None:
    with service.client() as browser:
        page = browser.get(f"/calibrators/shuffled/versions/{shuffled.number}").text
        assert "badge at_chance" in page
        assert WORDS.removeprefix("the ") in page
        preview = browser.get(f"/calibrators/shuffled/promote?version={shuffled.number}").text
        assert f"was judged at_chance ({WORDS}" in preview
