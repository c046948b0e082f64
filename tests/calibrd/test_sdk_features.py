"""Features in the SDK: upload, fits, predict, local maps, and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.feature_samples import arrays_with_features, rows_with_features
from helpers.live_service import Running
from helpers.refusals import refused

import calibrd
from calibrators import CalibrationSet, DataError, FitError, archive, evaluate
from calibrators.methods.feature_clipping import FeatureClippingMap
from calibrd import errors
from calibrd.api import predictions
from calibrd.batch import BatchApply, apply_file
from calibrd.cli.arguments import run
from calibrd.io.dataset_files import read_set
from calibrd.io.payload import pack_dataset

DATA = rows_with_features()
ROWS, FEATURES = DATA["logits"], DATA["features"]
NAME = "sdk-features"


@pytest.fixture
def fitted(client: calibrd.Client) -> FeatureClippingMap:
    """Return the map of ``sdk-features@1``, fitted by the service."""
    try:
        version = client.get_version(f"{NAME}@1")
    except errors.NotFound:
        version = client.fit(NAME, **DATA, method="feature_clipping", progress=False)
    assert (version.number, version.method) == (1, "feature_clipping")
    found = client.load(f"{NAME}@1", refresh=None).map
    assert isinstance(found, FeatureClippingMap)
    return found


def test_the_service_and_a_local_fit_give_the_same_map(fitted: FeatureClippingMap) -> None:
    here = calibrd.fit_local(**DATA, method="feature_clipping", progress=False)
    assert archive.dump(here.map) == archive.dump(fitted)


def test_rows_that_judge_here_have_features_too() -> None:
    other = rows_with_features(600, seed=3)
    rows = (other["logits"], other["labels"], None, other["features"])
    here = calibrd.fit_local(**DATA, method="feature_clipping", evaluation=rows, progress=False)
    assert here.report.n == 600
    with pytest.raises(DataError, match=r"6 features per row .* got none"):
        calibrd.fit_local(**DATA, method="feature_clipping", evaluation=rows[:2], progress=False)


def test_predict_sends_features_in_blocks(
    client: calibrd.Client, fitted: FeatureClippingMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fitted.apply(ROWS, features=FEATURES)
    found = client.predict(f"{NAME}@1", ROWS, features=FEATURES)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    one = client.predict(f"{NAME}@1", ROWS[0], features=FEATURES[:1])
    np.testing.assert_allclose(one, expected[:1], atol=1e-6)
    monkeypatch.setattr(predictions, "BLOCK_BYTES", 10_000)
    found = client.predict(f"{NAME}@1", ROWS, features=torch.tensor(FEATURES))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    half = client.predict(f"{NAME}@1", ROWS, features=FEATURES.astype(np.float16))
    np.testing.assert_allclose(half, expected, atol=0.02)


def test_predict_counts_rows_from_the_start(
    client: calibrd.Client, fitted: FeatureClippingMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = FEATURES.copy()
    broken[1234, 0] = np.nan
    monkeypatch.setattr(predictions, "BLOCK_BYTES", 10_000)
    with pytest.raises(DataError, match="first row 1234"):
        client.predict(f"{NAME}@1", ROWS, features=broken)
    rows = ROWS.copy()
    rows[1235, 1] = np.nan
    with refused("nan", match="first row 1235"):
        client.predict(f"{NAME}@1", rows, features=FEATURES)


def test_evaluate_and_loaded_maps_take_features(
    client: calibrd.Client, fitted: FeatureClippingMap
) -> None:
    other = rows_with_features(500, seed=6)
    report = client.evaluate(
        f"{NAME}@1", other["logits"], other["labels"], features=other["features"]
    )
    p = fitted.apply(other["logits"], features=other["features"])
    assert report.metrics["nll"] == pytest.approx(evaluate(p, other["labels"]).metrics["nll"])
    loaded = client.load(f"{NAME}@1", refresh=None)
    tensors = torch.tensor(other["logits"]), torch.tensor(other["features"])
    np.testing.assert_array_equal(loaded.apply(tensors[0], features=tensors[1]), p)
    z = loaded.transform(tensors[0], features=tensors[1])
    np.testing.assert_allclose(np.exp(z) / np.exp(z).sum(axis=1, keepdims=True), p, atol=1e-6)


def test_missing_features_are_reported_by_both_sides(
    client: calibrd.Client, fitted: FeatureClippingMap
) -> None:
    plain = {"logits": ROWS, "labels": DATA["labels"]}
    with refused("missing_features", match="send it with features"):
        client.fit("lacking", **plain, method="feature_clipping", progress=False)
    with refused("missing_head", match="send it with head_weight and head_bias"):
        client.fit("lacking", **plain, features=FEATURES, method="feature_clipping", progress=False)
    with pytest.raises(FitError) as caught:
        calibrd.fit_local(**plain, method="feature_clipping", progress=False)
    assert caught.value.code == "missing_features"
    assert "features=" in caught.value.hint
    with refused("missing_features", match="needs the 6 features"):
        client.predict(f"{NAME}@1", ROWS)
    with pytest.raises(DataError, match="needs the 6 features"):
        client.load(f"{NAME}@1", refresh=None).apply(ROWS)
    with pytest.raises(TypeError, match="cannot be combined with dataset="):
        client.start_fit("lacking", dataset="ds_1", features=FEATURES)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_features_are_sent_as_they_are(dtype: type) -> None:
    payload = pack_dataset(
        ROWS, DATA["labels"], "logits", features=FEATURES.astype(dtype), head=DATA["head"]
    )
    assert payload.media_type == "application/x-safetensors"
    size = FEATURES.size * np.dtype(dtype).itemsize + ROWS.nbytes + 8 * len(ROWS)
    assert size < payload.bytes < size + 2000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.npz"
    np.savez(path, **arrays_with_features())
    return path


def test_files_hold_features(file: Path) -> None:
    found = read_set(file).checked()
    assert found.features is not None
    assert found.features.head is not None
    np.testing.assert_array_equal(found.features.values, FEATURES)
    np.testing.assert_array_equal(found.features.head.weight, DATA["head"][0])


def test_the_command_line_fits_applies_and_judges_files(
    service: Running, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ["--url", service.url]
    out = tmp_path / "map.calibrd"
    command = ["fit", str(file), "--method", "feature_clipping"]
    assert run([*command, "--out", str(out)]) == 0
    here = archive.load(out.read_bytes())
    capsys.readouterr()
    assert run([*command, "--name", "cli-features", "--json", *url]) == 0
    assert json.loads(capsys.readouterr().out)["version"]["method"] == "feature_clipping"
    made = tmp_path / "out.npz"
    assert run(["apply", str(file), str(made), "--map", str(out)]) == 0
    with np.load(made) as stored:
        p = stored["probabilities"]
    np.testing.assert_array_equal(p, here.apply(ROWS, features=FEATURES))
    new_rows = tmp_path / "new.npz"
    np.savez(new_rows, **arrays_with_features(seed=3))
    assert run(["gate", str(new_rows), "--map", str(out), "--max-calibration-error", "0.2"]) == 0


def test_rows_without_features_are_refused_in_files(file: Path, tmp_path: Path) -> None:
    fitted = calibrd.fit_local(**DATA, method="feature_clipping", progress=False).map
    plain = tmp_path / "plain.npz"
    np.savez(plain, logits=ROWS)
    with pytest.raises(DataError) as caught:
        apply_file(fitted, plain, tmp_path / "out.npz", progress=False)
    assert caught.value.code == "missing_features"
    short = tmp_path / "short.npz"
    np.savez(short, logits=ROWS, features=FEATURES[1:])
    with pytest.raises(DataError) as caught:
        apply_file(fitted, short, tmp_path / "out.npz", progress=False)
    assert caught.value.code == "features_length"
    batch: dict[str, Any] = {"logits": ROWS, "h": FEATURES}
    found = BatchApply(fitted, features="h")(batch)["probabilities"]
    np.testing.assert_array_equal(found, fitted.apply(ROWS, features=FEATURES))
    assert CalibrationSet(**DATA).n == len(ROWS)
