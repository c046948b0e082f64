"""The callbacks in a real Trainer of Lightning."""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.documents import blocks_of
from helpers.live_service import Running
from torch.utils.data import DataLoader, TensorDataset

import calibrd
from calibrators import ParameterError
from calibrd.training import lightning as callbacks
from calibrd.training import make_loss
from calibrd.training.monitor import agreement_of

pytestmark = [  # lightning's own warning
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]


@pytest.fixture(scope="module")
def both() -> dict[str, Any]:
    """Return the package under both of its names; imported only by the tests that need it."""
    return {name: importlib.import_module(name) for name in callbacks.NAMES}


@pytest.fixture
def pl(both: dict[str, Any]) -> Any:
    """Return the package under its new name."""
    return both["lightning.pytorch"]


@functools.cache
def net_of(pl: Any) -> Any:
    """Return a module class of the package."""

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

    return Net


def loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 6, generator=generator)
    labels = (inputs[:, :3] + torch.randn(64, 3, generator=generator)).argmax(dim=1)
    return DataLoader(TensorDataset(inputs, labels), batch_size=32)


def trainer(pl: Any, folder: Path, epochs: int, *used: Any) -> Any:
    return pl.Trainer(
        default_root_dir=folder,
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(used),
    )


def fitted(pl: Any, module: Any, folder: Path, epochs: int, *used: Any, **options: Any) -> Any:
    made = trainer(pl, folder, epochs, *used)
    made.fit(module, loader(), loader(), **options)
    return made


@pytest.mark.parametrize("name", callbacks.NAMES)
def test_a_fit_is_a_run_and_continues_from_its_checkpoint(
    name: str, both: dict[str, Any], client: calibrd.Client, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    pl, run = both[name], name.replace(".", "-")
    steered = callbacks.AdaFocalCallback(client, run=run, rate=3.0)
    watching = callbacks.MonitorCallback(client, run=f"{run}-watch", diagnose=True)
    assert watching.agreement is None
    assert isinstance(steered, pl.Callback)
    module = net_of(pl)(steered.loss)
    made = fitted(pl, module, tmp_path, 2, steered, watching)
    assert steered.loss.state.step == 2
    path = tmp_path / "kept.ckpt"
    made.save_checkpoint(path)
    assert [one.step for one in client.run_history(run)] == [1, 2]
    assert client.run_history(run)[-1].gammas == steered.loss.state.gammas.tolist()
    assert [one.metrics.rows for one in client.run_history(f"{run}-watch")] == [64, 64]
    with torch.no_grad():
        batches = [agreement_of(module.net(x), y) for x, y in loader()]
    assert watching.agreement.cosine == pytest.approx((batches[0] + batches[1]).cosine, rel=1e-5)

    fitted(pl, module, tmp_path, 3, steered, watching)  # a further fit of the same callbacks
    assert steered.loss.state.step == 5

    again = callbacks.AdaFocalCallback(client, run=run, rate=3.0)
    watching = callbacks.MonitorCallback(client, run=f"{run}-watch")
    fitted(pl, net_of(pl)(again.loss), tmp_path, 3, again, watching, ckpt_path=path)
    assert again.loss.state.step == 3
    for one in (run, f"{run}-watch"):
        history = client.run_history(one)
        assert [one.step for one in history] == [1, 2, 3]
        assert all(one.verified in (True, None) for one in history)


def test_a_monitor_creates_a_loss_by_name_and_notifies_it_of_epochs(
    pl: Any, client: calibrd.Client, tmp_path: Path
) -> None:
    watching = callbacks.MonitorCallback(
        client, run="loss-by-name", loss="online_label_smoothing", classes=3
    )
    module = net_of(pl)(watching.loss)
    fitted(pl, module, tmp_path, 2, watching)
    assert not torch.allclose(module.loss.soft, torch.full((3, 3), 1 / 3))
    assert not module.loss.seen.any()
    assert [one.metrics.rows for one in client.run_history("loss-by-name")] == [64, 64]


def test_which_losses_a_monitor_takes() -> None:
    with pytest.raises(ParameterError, match="there is no loss 'secca'; did you mean 'seca'"):
        callbacks.MonitorCallback(None, run="loss-by-name", loss="secca")
    for steered in ("adafocal", make_loss("refcal", loss="adafocal")):
        with pytest.raises(ValueError, match=r"use AdaFocalCallback\(loss='adafocal'\)"):
            callbacks.MonitorCallback(None, run="loss-by-name", loss=steered)
    with pytest.raises(ValueError, match="gamma can only be combined with the name"):
        callbacks.MonitorCallback(None, run="loss-by-name", gamma=1.0)
    with pytest.raises(ValueError, match="a loss created by make_loss, got CrossEntropyLoss"):
        callbacks.MonitorCallback(None, run="loss-by-name", loss=torch.nn.CrossEntropyLoss())
    made = callbacks.MonitorCallback(
        None, run="loss-by-name", loss=make_loss("brier", ignore_index=255)
    )
    assert made.ignore_index == 255


def test_which_losses_are_steered() -> None:
    assert (
        callbacks.AdaFocalCallback(None, run="loss-by-name", loss="calfocal").loss.name
        == "calfocal"
    )
    for other in ("seca", make_loss("seca")):
        with pytest.raises(
            ValueError, match="adafocal or calfocal, which adapt to calibration, got seca"
        ):
            callbacks.AdaFocalCallback(None, run="loss-by-name", loss=other)


def test_validation_alone_is_no_step(pl: Any, tmp_path: Path) -> None:
    steered = callbacks.AdaFocalCallback(None, run="alone")
    module = net_of(pl)(steered.loss, as_dict=False)
    trainer(pl, tmp_path, 1, steered).validate(module, loader(), verbose=False)
    assert steered.loss.state.step == 0
    fitted(pl, module, tmp_path, 1, steered)
    assert steered.loss.state.step == 1


def nothing(batch: Any, batch_idx: int) -> None:
    """Return no result from a validation step."""


def test_invalid_validation_results_are_refused(pl: Any, tmp_path: Path) -> None:
    steered = callbacks.AdaFocalCallback(None, run="alone")
    module = net_of(pl)(steered.loss)
    module.validation_step = nothing
    with pytest.raises(TypeError, match="validation_step must return"):
        fitted(pl, module, tmp_path, 1, steered)


def test_it_can_be_sent_to_processes_before_training(
    both: dict[str, Any], client: calibrd.Client
) -> None:
    made = callbacks.AdaFocalCallback(client, run="sent", bins=5)
    found, loss = pickle.loads(pickle.dumps((made, made.loss)))  # noqa: S301
    assert found.loss is loss
    assert loss.state.settings.bins == 5


def test_it_takes_the_classes_of_the_package_in_use(
    both: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callbacks.bases() == tuple(one.Callback for one in both.values())
    monkeypatch.delitem(sys.modules, "lightning.pytorch")  # simulates a package that is not loaded
    assert callbacks.bases() == (both["pytorch_lightning"].Callback,)
    monkeypatch.delitem(sys.modules, "pytorch_lightning")
    monkeypatch.setitem(sys.modules, "lightning", None)  # simulates a missing package
    assert callbacks.bases() == (both["pytorch_lightning"].Callback,)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    with pytest.raises(ModuleNotFoundError, match="needs lightning or pytorch_lightning"):
        callbacks.bases()


def test_the_guide_runs_as_pasted(
    both: dict[str, Any],
    service: Running,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    monkeypatch.setenv("CALIBRD_URL", service.url)
    monkeypatch.chdir(tmp_path)
    guide = "docs/how-to/train.md"
    tag = 'python title="train_lightning.py"'
    (block,) = [one for one in blocks_of(guide) if one.language == tag]
    exec(compile(block.code, guide, "exec"), {"__name__": "guide"})  # noqa: S102
    assert capsys.readouterr().out.endswith("2\n")
