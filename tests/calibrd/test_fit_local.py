"""Fit on this machine and register only the map."""

from __future__ import annotations

import hashlib
import io
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.live_service import sample

import calibrd
from calibrators import CalibrationSet, DataError, FitError, ParameterError, archive, fit_and_judge
from calibrators.methods.temperature import TemperatureScaling
from calibrators.numerics.softmax import softmax

LOGITS, LABELS = sample()


def test_only_the_map_and_its_report_are_sent(client: calibrd.Client) -> None:
    fitted = calibrd.fit_local(LOGITS, LABELS, method="temperature", progress=False)
    datasets = client.datasets()
    version = client.register("elsewhere", *fitted, model="sha256:abc", tags={"from": "here"})
    assert client.datasets() == datasets
    assert (version.number, version.verdict) == (1, fitted.report.verdict)
    assert version.report is fitted.report
    found = client.get_version("elsewhere@1")
    assert found.report == fitted.report
    assert (found.model, found.tags, found.dataset_sha256) == ("sha256:abc", {"from": "here"}, None)
    assert archive.load(client.get_map("elsewhere@1")).temperature == fitted.map.temperature
    client.promote("elsewhere", version)
    given = client.predict("elsewhere", LOGITS)
    assert np.abs(given - fitted.map.apply(LOGITS)).max() < 1e-6


def test_arguments_of_register(client: calibrd.Client) -> None:
    fitted = calibrd.fit_local(LOGITS, LABELS, method="temperature", progress=False)
    with pytest.raises(TypeError, match=r"unpack the result of fit_local as \*fitted"):
        client.register("taken", fitted)
    first = client.register("taken", fitted.map)
    with client.load("taken@1") as loaded:
        again = client.register("taken", loaded)
    assert (again.number, again.map_sha256) == (2, first.map_sha256)


def test_it_is_the_fit_of_the_maths_on_any_arrays() -> None:
    plain = fit_and_judge(TemperatureScaling(), CalibrationSet(LOGITS, LABELS))
    tensor = torch.tensor(LOGITS, requires_grad=True)
    fitted = calibrd.fit_local(tensor, pd.Series(LABELS), method="temperature", progress=False)
    assert fitted.map.temperature == plain.map.temperature
    assert fitted.report == plain.report


def test_no_bar_outside_of_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    calibrd.fit_local(LOGITS, LABELS, method="smart", params={"steps": 20})
    assert capsys.readouterr().err == ""


def test_the_bar_is_full_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    calibrd.fit_local(LOGITS, LABELS, method="smart", params={"steps": 20})
    shown = capsys.readouterr().err
    assert "fit smart: 100%" in shown
    assert "loss=" in shown
    calibrd.fit_local(LOGITS, LABELS, method="temperature", progress=False)
    assert capsys.readouterr().err == ""


def test_parameters_and_seed_are_the_methods() -> None:
    fitted = calibrd.fit_local(
        LOGITS, LABELS, method="smart", params={"steps": 5}, seed=3, held_out=0.5, progress=False
    )
    assert fitted.report.fit["parameters"]["seed"] == 3
    assert fitted.report.fit["parameters"]["steps"] == 5
    assert fitted.report.n == len(LABELS) // 2


def test_judged_on_rows_of_its_own() -> None:
    fitted = calibrd.fit_local(
        LOGITS[:400],
        LABELS[:400],
        method="temperature",
        evaluation=(LOGITS[400:].tolist(), LABELS[400:]),
        progress=False,
    )
    assert fitted.report.n == 200
    assert "separate evaluation set" in fitted.report.judged_on


def test_probabilities() -> None:
    p = softmax(LOGITS.astype(np.float64))
    p = (p + 1e-12) / (p + 1e-12).sum(axis=1, keepdims=True)
    fitted = calibrd.fit_local(
        p, LABELS, method="temperature", kind="probabilities", progress=False
    )
    assert fitted.map.kind == "probabilities"
    assert fitted.report.verdict == "improved"


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"method": "temprature"}, ParameterError, "did you mean 'temperature'"),
        ({"method": "smart", "params": {"stps": 3}}, ParameterError, "did you mean 'steps'"),
        ({"method": "smart", "params": {"steps": 0}}, ParameterError, "steps must be at least 1"),
        (
            {"method": "smart", "params": {"seed": 1}, "seed": 2},
            ParameterError,
            "pass only one",
        ),
        ({"kind": "scores"}, ValueError, "kind must be 'logits' or 'probabilities'"),
        ({"kind": "probabilities"}, DataError, "probabilities"),
        ({"held_out": 2.0, "method": "temperature"}, FitError, "held_out must be"),
    ],
)
def test_refused_input(given: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        calibrd.fit_local(LOGITS, LABELS, **{"progress": False, **given})


def test_fingerprints(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, LOGITS)
    path = tmp_path / "model.bin"
    path.write_bytes(file.getvalue())
    wanted = f"sha256:{hashlib.sha256(file.getvalue()).hexdigest()}"
    assert calibrd.fingerprint(path) == calibrd.fingerprint(str(path)) == wanted
    assert calibrd.fingerprint(file.getvalue()) == calibrd.fingerprint(file.getbuffer()) == wanted


def test_a_seed_among_the_parameters_is_taken() -> None:
    data = sample(300)
    one = calibrd.fit_local(*data, method="pts", params={"seed": 3}, progress=False)
    other = calibrd.fit_local(*data, method="pts", seed=3, progress=False)
    assert one.map.w1.tolist() == other.map.w1.tolist()
