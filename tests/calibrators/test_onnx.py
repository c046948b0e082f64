"""ONNX export: each model is verified with onnxruntime before it is returned."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from helpers.samples import draw, sample

from calibrators import CalibrationSet, ExportError
from calibrators.export import onnx
from calibrators.methods.smart import Smart
from calibrators.methods.temperature import TemperatureMap
from calibrators.numerics.softmax import softmax
from calibrators.registry import make_recipe


@pytest.mark.parametrize("k", [2, 10, 1000])
def test_real_and_extreme_rows(k: int) -> None:
    data = draw(600, k)
    fitted = Smart(steps=50).fit(data)
    session = onnxruntime.InferenceSession(onnx.export(fitted))
    rows = np.concatenate([data.logits, data.logits * 1e3, onnx.trial_rows(fitted)])
    (given,) = session.run(None, {"logits": rows})
    assert np.abs(given - fitted.apply(rows)).max() <= 1e-6
    assert given.dtype == np.float32


@pytest.mark.parametrize("name", ["ets", "histogram_one_vs_rest", "isotonic_one_vs_rest"])
def test_sums_over_a_thousand_classes(name: str) -> None:
    rng = np.random.default_rng(0)
    z = (rng.normal(size=(3000, 1000)) * 3).astype(np.float32)
    labels = (z / 1.5 + rng.gumbel(size=z.shape)).argmax(axis=1)
    fitted = make_recipe(name, {}).fit(CalibrationSet(z, labels))
    session = onnxruntime.InferenceSession(onnx.export(fitted))
    (given,) = session.run(None, {"logits": z[:300]})
    assert np.abs(given - fitted.apply(z[:300])).max() <= 1e-6
    assert given.dtype == np.float32


def test_real_sample_and_probabilities() -> None:
    test = sample("test")
    p = softmax(test.logits.astype(np.float64)).astype(np.float32) + np.float32(1e-9)
    p /= p.sum(axis=1, keepdims=True)
    fitted = Smart(steps=50).fit(CalibrationSet.from_probabilities(p, test.labels))
    session = onnxruntime.InferenceSession(onnx.export(fitted))
    (given,) = session.run(None, {"probabilities": p})
    assert np.abs(given - fitted.apply(p)).max() <= 1e-6


def test_a_wrong_model_is_not_returned() -> None:
    data = onnx.export(TemperatureMap(k=3, temperature=1.5))
    with pytest.raises(ExportError, match="must agree with the map to 1e-06, but differs by"):
        onnx.prove(TemperatureMap(k=3, temperature=1.500001e0 * 1.01), data)


def test_a_model_that_does_not_run_is_not_returned() -> None:
    with pytest.raises(ExportError, match="onnxruntime cannot run the export"):
        onnx.prove(TemperatureMap(k=3, temperature=1.5), b"no model")
    four = onnx.export(TemperatureMap(k=4, temperature=1.5))
    with pytest.raises(ExportError, match="onnxruntime cannot run the export"):
        onnx.prove(TemperatureMap(k=3, temperature=1.5), four)


def test_trial_rows_are_extreme() -> None:
    rows = onnx.trial_rows(TemperatureMap(k=4, temperature=1.0))
    assert np.isneginf(rows).any()
    assert rows.max() >= 1e4
    assert (np.ptp(rows, axis=1) == 0).any()


def test_temperatures_that_grow_without_end() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2000, 4)) * 4
    top = np.sort(z, axis=1)
    margin = top[:, -1:] - top[:, -2:-1]
    labels = (z / (1 + margin) + rng.gumbel(size=z.shape)).argmax(axis=1)
    fitted = Smart().fit(CalibrationSet(z, labels))
    session = onnxruntime.InferenceSession(onnx.export(fitted))
    rows = (z * 1e5).astype(np.float32)
    assert np.abs(session.run(None, {"logits": rows})[0] - fitted.apply(rows)).max() <= 1e-6
