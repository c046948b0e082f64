"""The callbacks in a real Trainer of Lightning."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from live_service import ROOT, Running
from test_documents import blocks_of
from torch.utils.data import DataLoader, TensorDataset

import calibrd
from calibrd.training.lightning import AdaFocalCallback, MonitorCallback

pytestmark = [  # of lightning's own
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]


class Net(pl.LightningModule):
    def __init__(self, loss: Any, *, as_dict: bool = True) -> None:
        super().__init__()
        self.net = torch.nn.Linear(6, 3)
        self.loss = loss
        self.as_dict = as_dict

    def training_step(self, batch: Any, index: int) -> Any:
        inputs, labels = batch
        return self.loss(self.net(inputs), labels)

    def validation_step(self, batch: Any, index: int) -> Any:
        logits, labels = self.net(batch[0]), batch[1]
        return {"logits": logits, "labels": labels} if self.as_dict else (logits, labels)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.3)


def loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 6, generator=generator)
    labels = (inputs[:, :3] + torch.randn(64, 3, generator=generator)).argmax(dim=1)
    return DataLoader(TensorDataset(inputs, labels), batch_size=32)


def trainer(folder: Path, epochs: int, *callbacks: Any, **options: Any) -> pl.Trainer:
    return pl.Trainer(
        default_root_dir=folder,
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **options,
    )


def fitted(module: Net, folder: Path, epochs: int, *callbacks: Any, **options: Any) -> pl.Trainer:
    made = trainer(folder, epochs, *callbacks)
    made.fit(module, loader(), loader(), **options)
    return made


def test_a_fit_is_a_run_and_its_checkpoint_goes_on(client: calibrd.Client, tmp_path: Path) -> None:
    torch.manual_seed(0)
    steered = AdaFocalCallback(client, run="lightning", rate=3.0)
    watching = MonitorCallback(client, run="lightning-watch")
    module = Net(steered.loss)
    made = fitted(module, tmp_path, 2, steered, watching)
    assert steered.loss.state.step == 2
    path = tmp_path / "kept.ckpt"
    made.save_checkpoint(path)
    assert [one.step for one in client.run_history("lightning")] == [1, 2]
    assert client.run_history("lightning")[-1].gammas == steered.loss.state.gammas.tolist()
    assert [one.metrics.rows for one in client.run_history("lightning-watch")] == [64, 64]

    fitted(module, tmp_path, 3, steered, watching)  # a further fit of the same callbacks
    assert steered.loss.state.step == 5

    again = AdaFocalCallback(client, run="lightning", rate=3.0)
    watching = MonitorCallback(client, run="lightning-watch")
    fitted(Net(again.loss), tmp_path, 3, again, watching, ckpt_path=path)
    assert again.loss.state.step == 3
    for run in ("lightning", "lightning-watch"):
        history = client.run_history(run)
        assert [one.step for one in history] == [1, 2, 3]
        assert all(one.verified in (True, None) for one in history)


def test_validation_alone_is_no_step(tmp_path: Path) -> None:
    steered = AdaFocalCallback(None, run="alone")
    module = Net(steered.loss, as_dict=False)
    trainer(tmp_path, 1, steered).validate(module, loader(), verbose=False)
    assert steered.loss.state.step == 0
    fitted(module, tmp_path, 1, steered)
    assert steered.loss.state.step == 1


def nothing(batch: Any, batch_idx: int) -> None:
    """A validation step that keeps its results to itself."""


def test_what_validation_must_return_is_told(tmp_path: Path) -> None:
    steered = AdaFocalCallback(None, run="alone")
    module = Net(steered.loss)
    module.validation_step = nothing  # type: ignore[method-assign]
    with pytest.raises(TypeError, match="validation_step must return"):
        fitted(module, tmp_path, 1, steered)


def test_it_can_be_sent_to_processes_before_training(client: calibrd.Client) -> None:
    made = AdaFocalCallback(client, run="sent", bins=5)
    found = pickle.loads(pickle.dumps((made, Net(made.loss))))  # noqa: S301
    assert found[0].loss is found[1].loss
    assert found[0].loss.state.settings.bins == 5


def test_it_takes_the_classes_of_the_package_in_use() -> None:
    """With only the older package installed, only that is loaded."""
    code = """
import sys, types
class Callback: pass
older = types.ModuleType("pytorch_lightning")
older.Callback = Callback
sys.modules["pytorch_lightning"] = older
sys.modules["lightning"] = None
from calibrd.training.lightning import AdaFocalCallback, MonitorCallback
assert issubclass(AdaFocalCallback, Callback) and issubclass(MonitorCallback, Callback)
print(AdaFocalCallback(None, run="older").state_dict())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "{}\n", done.stderr


def test_the_guide_runs_as_pasted(
    service: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("CALIBRD_URL", service.url)
    monkeypatch.chdir(tmp_path)
    (block,) = [one for one in blocks_of("docs/training.md") if one.language == "python lightning"]
    exec(compile(block.code, "docs/training.md", "exec"), {"__name__": "guide"})  # noqa: S102
    assert capsys.readouterr().out.endswith("2\n")
