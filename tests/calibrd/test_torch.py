"""Maps as torch modules: they agree with numpy and can be saved, moved and exported."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from helpers.live_service import sample
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from calibrators import CalibrationMap, CalibrationSet, DataError, ExportError, all_methods
from calibrators.export.onnx import trial_rows
from calibrators.methods._smart_features import Indicator
from calibrators.methods.smart import Smart
from calibrators.methods.temperature import TemperatureMap
from calibrators.numerics.softmax import softmax
from calibrd.api.references import Reference
from calibrd.maps.cache import LoadedMap
from calibrd.maps.local_map import LocalMap
from calibrd.torch import CalibratedModule, MapModule, collect_logits, fingerprint

LOGITS, LABELS = sample()
DATA = CalibrationSet(LOGITS, LABELS)
INDICATORS = get_args(Indicator)
METHODS = {
    name: one
    for name, one in all_methods().items()
    if not (one.needs_segments or one.needs_features)
}


def probabilities() -> CalibrationSet:
    p = softmax(LOGITS.astype(np.float64)) + 1e-9
    return CalibrationSet.from_probabilities(p / p.sum(axis=1, keepdims=True), LABELS)


@pytest.fixture(scope="module")
def maps() -> dict[str, CalibrationMap]:
    """Return a map of every method and indicator, of two classes, and for probabilities."""
    quick = {"steps": 20}
    less = {"smart": quick}
    made = {name: method(**less.get(name, {})).fit(DATA) for name, method in METHODS.items()}
    made |= {f"smart {one}": Smart(indicator=one, **quick).fit(DATA) for one in INDICATORS}
    made["probabilities"] = Smart(**quick).fit(probabilities())
    made["binary"] = Smart(**quick).fit(CalibrationSet(LOGITS[:, :2], LABELS % 2))
    return made


NAMES = [*METHODS, *(f"smart {one}" for one in INDICATORS), "probabilities", "binary"]


@pytest.mark.parametrize("name", NAMES)
def test_it_gives_the_results_of_the_map(maps: dict[str, CalibrationMap], name: str) -> None:
    fitted = maps[name]
    module = MapModule(fitted)
    rows = trial_rows(fitted)
    given = module(torch.from_numpy(rows))
    assert given.dtype == torch.float32
    expected = fitted.apply_logits(fitted.read(rows)[0])
    assert np.abs(given.numpy() - expected).max() <= 1e-6
    wide = softmax(LOGITS[:, : fitted.k].astype(np.float64))
    rows = wide + 1e-9 if fitted.kind == "probabilities" else LOGITS[:, : fitted.k].astype(float)
    given = module(torch.from_numpy(rows))
    assert given.dtype == torch.float64
    assert np.abs(given.numpy() - fitted.apply(rows)).max() <= 1e-12
    assert torch.allclose(torch.softmax(module.logits(torch.from_numpy(rows)), 1), given)


def test_a_map_with_segments_is_refused() -> None:
    segmented = all_methods()["segmented"]().fit(CalibrationSet(LOGITS, LABELS, LABELS % 2))
    with pytest.raises(ExportError, match="needs the segment of each row"):
        MapModule(segmented)


def test_one_column_of_a_binary_model() -> None:
    fitted = TemperatureMap(k=2, temperature=2.0)
    for column in (torch.tensor([3.0, -1.0]), torch.tensor([[3.0], [-1.0]])):
        assert np.allclose(MapModule(fitted)(column).numpy(), fitted.apply(column.numpy()))
    chances = torch.tensor([0.9, 0.2])
    fitted = TemperatureMap(k=2, temperature=2.0, kind="probabilities")
    assert np.allclose(MapModule(fitted)(chances).numpy(), fitted.apply(chances.numpy()))


def test_other_shapes_are_refused() -> None:
    module = MapModule(TemperatureMap(k=3, temperature=2.0))
    for shape in ((2, 4), (3,), (2, 3, 3)):
        with pytest.raises(DataError, match=r"takes logits \(n, 3\), got shape"):
            module(torch.zeros(shape))


def test_an_operation_that_is_not_known_is_named() -> None:
    class Strange(TemperatureMap):
        def onnx_logits(self, graph: Any, logits: str) -> str:
            return str(graph.add("Einsum", logits))

    with pytest.raises(ExportError, match="does not support the operation 'Einsum'"):
        MapModule(Strange(k=3, temperature=1.0))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 5))


@pytest.fixture
def calibrated(model: nn.Module, maps: dict[str, CalibrationMap]) -> CalibratedModule:
    return CalibratedModule(model, maps["smart"]).eval()


def test_the_map_accepts_the_output_of_the_model(
    model: nn.Module, maps: dict[str, CalibrationMap]
) -> None:
    model.eval()
    chances = nn.Sequential(model, nn.Softmax(1))
    with pytest.raises(
        ValueError, match="outputs is 'logits', but the map was fitted on probabilities"
    ):
        CalibratedModule(model, maps["probabilities"])
    with pytest.raises(ValueError, match="outputs is 'probabilities', but the map"):
        CalibratedModule(chances, maps["smart"], outputs="probabilities")
    whole = CalibratedModule(chances, maps["probabilities"], outputs="probabilities")
    assert torch.equal(whole(X), MapModule(maps["probabilities"])(chances(X)))


def test_a_loaded_map_is_taken_as_it_is_now(model: nn.Module) -> None:
    fitted = TemperatureMap(k=5, temperature=2.0)
    now = LoadedMap(1, "0" * 64, None, datetime.now(UTC), fitted)
    loaded = LocalMap(now, Reference("net", "production"))
    model.eval()
    assert torch.equal(CalibratedModule(model, loaded)(X), CalibratedModule(model, fitted)(X))
    with pytest.raises(TypeError, match="must be a CalibrationMap or a LocalMap, got"):
        MapModule("net@production")  # type: ignore[arg-type]


X = torch.randn(7, 4, generator=torch.Generator().manual_seed(1)) * 5


def test_state_is_saved_and_loaded(calibrated: CalibratedModule, model: nn.Module) -> None:
    file = io.BytesIO()
    torch.save(calibrated.state_dict(), file)
    other = CalibratedModule(copy.deepcopy(model), Smart(steps=1, seed=5).fit(DATA)).eval()
    for one in other.parameters():
        nn.init.zeros_(one)
    assert not torch.allclose(other(X), calibrated(X))
    other.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    assert torch.equal(other(X), calibrated(X))
    assert torch.equal(copy.deepcopy(calibrated)(X), calibrated(X))


def test_it_follows_the_model(calibrated: CalibratedModule, model: nn.Module) -> None:
    assert not list(calibrated.map.parameters())
    fitted = TemperatureMap(k=5, temperature=2.0)
    assert {b.device.type for b in CalibratedModule(model.to("meta"), fitted).buffers()} == {"meta"}


def test_few_digits_stay_outside(calibrated: CalibratedModule) -> None:
    exact = calibrated(X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = calibrated.model(X)
        given = calibrated(X)
    assert logits.dtype == torch.bfloat16
    assert given.dtype == torch.float32
    assert torch.equal(given, calibrated.map(logits.float()))
    calibrated.bfloat16()
    assert next(calibrated.model.parameters()).dtype == torch.bfloat16
    assert torch.equal(calibrated.map(logits.float()), given)
    assert torch.allclose(calibrated(X.bfloat16()), exact, atol=0.05)


def test_gradients_reach_the_model(calibrated: CalibratedModule) -> None:
    nn.functional.nll_loss(calibrated(X).log(), torch.arange(7) % 5).backward()
    assert all(one.grad is not None and one.grad.abs().sum() > 0 for one in calibrated.parameters())
    rows = torch.from_numpy(LOGITS[:4].astype(np.float64)).requires_grad_()
    assert torch.autograd.gradcheck(calibrated.map, rows)


@pytest.mark.parametrize("name", ["temperature", "smart", "probabilities", "smart entropy"])
def test_torch_export_of_any_batch(maps: dict[str, CalibrationMap], name: str) -> None:
    module = MapModule(maps[name])
    rows = torch.from_numpy(trial_rows(maps[name]))
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (rows[:5],), dynamic_shapes=({0: batch},))
    assert torch.equal(program.module()(rows), module(rows))


class ByName(nn.Module):
    """A model that takes keyword arguments and returns a mapping, like language models."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, features: torch.Tensor) -> Any:
        return SimpleNamespace(logits=self.inner(features))


def test_collect_logits(
    model: nn.Module, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    features, truth = torch.randn(50, 4), torch.arange(50) % 5
    loader = DataLoader(TensorDataset(features, truth), batch_size=8)
    model[2].eval()
    before = [module.training for module in model.modules()]
    logits, labels = collect_logits(model, loader)
    assert "7/7" in capsys.readouterr().err
    assert [module.training for module in model.modules()] == before
    assert labels.tolist() == truth.tolist()
    assert np.allclose(logits, copy.deepcopy(model).eval()(features).detach().numpy(), atol=1e-6)
    named = [{"features": x, "labels": y} for x, y in loader]
    same, truths = collect_logits(ByName(model), iter(named), progress=False)
    assert np.array_equal(same, logits)
    assert np.array_equal(truths, labels)
    half, _ = collect_logits(
        copy.deepcopy(model).bfloat16(), [(features.bfloat16(), truth)], progress=False
    )
    assert half.dtype == np.float32
    assert capsys.readouterr().err == ""
    CalibrationSet(logits, labels)


def test_outputs_that_cannot_be_collected(model: nn.Module) -> None:
    for batch in (torch.zeros(2, 4), [torch.zeros(2, 4)], {"features": torch.zeros(2, 4)}):
        with pytest.raises(TypeError, match="a batch must be"):
            collect_logits(model, [batch], progress=False)
    with pytest.raises(ValueError, match="at least one batch"):
        collect_logits(model, [], progress=False)
    strange = ByName(nn.Identity())
    with pytest.raises(TypeError, match="the model must return logits"):
        collect_logits(strange, [{"features": "text", "label": [1]}], progress=False)
    assert model.training


def test_fingerprint(model: nn.Module) -> None:
    known = fingerprint(model)
    assert known.startswith("sha256:")
    assert fingerprint(copy.deepcopy(model)) == known
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed[0].bias[0] += 1e-6
    renamed = nn.Sequential(nn.Identity(), *copy.deepcopy(model))
    found = {known, *map(fingerprint, (changed, renamed, copy.deepcopy(model).double()))}
    assert len(found) == 4


def test_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import calibrd.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "calibrd.torch needs torch: pip install 'calibrd[train]'" in done.stderr
