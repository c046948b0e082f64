"""The callbacks in a real Trainer of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.documents import blocks_of
from helpers.live_service import Running
from torch import nn

import calibrd
from calibrators import DataError
from calibrators.losses.adafocal import AdaFocalLoss
from calibrd.training import huggingface

ROWS, CLASSES = 64, 3


class Net(nn.Module):
    """A model that returns logits, and a loss if it is given labels."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, CLASSES)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.net(inputs)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def rows() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(ROWS, 6, generator=generator)
    labels = (inputs[:, :CLASSES] + torch.randn(ROWS, CLASSES, generator=generator)).argmax(dim=1)
    return [
        {"inputs": row, "labels": int(label)} for row, label in zip(inputs, labels, strict=True)
    ]


def trainer(folder: Path, epochs: int, callback: Any, **options: Any) -> Any:
    import transformers  # imported here, so that collecting tests does not load it

    torch.manual_seed(0)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=32,
        gradient_accumulation_steps=2,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        learning_rate=0.1,
        dataloader_pin_memory=False,
        logging_strategy="no",
    )
    return transformers.Trainer(
        Net(),
        arguments,
        train_dataset=rows(),
        eval_dataset=rows(),
        callbacks=[callback],
        **options,
    )


def test_training_is_a_run_and_continues_from_its_checkpoint(
    client: calibrd.Client, tmp_path: Path
) -> None:
    def begun(epochs: int) -> tuple[Any, Any]:
        callback = huggingface.AdaFocalCallback(client, run="hf", rate=3.0)
        return callback, trainer(
            tmp_path, epochs, callback, compute_loss_func=callback.compute_loss
        )

    first, made = begun(3)
    made.train()
    assert first.loss.state.step == 3
    made.evaluate()
    made.predict(rows())
    assert first.loss.state.step == 3
    history = client.run_history("hf")
    assert [one.step for one in history] == [1, 2, 3]
    assert [one.metrics.rows for one in history] == [ROWS] * 3
    assert all(one.verified for one in history)

    second, made = begun(3)
    made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))  # two epochs of two steps
    assert second.loss.state.step == 3
    again = client.run_history("hf")
    assert [one.step for one in again] == [1, 2, 3]
    assert again[1].session == history[1].session != again[2].session
    assert again[2].gammas == history[2].gammas


def test_a_monitor_is_a_run_of_metrics(client: calibrd.Client, tmp_path: Path) -> None:
    callback = huggingface.MonitorCallback(client, run="hf-watch", diagnose=True)
    made = trainer(tmp_path, 2, callback, compute_metrics=callback.compute_metrics)
    made.train()
    found = made.evaluate()
    history = client.run_history("hf-watch")
    assert [one.step for one in history] == [1, 2]
    assert history[-1].metrics.ece == pytest.approx(found["eval_ece"])
    assert history[-1].metrics.rows == ROWS
    assert callback.agreement.rows == ROWS


def test_a_monitor_creates_a_loss_by_name_and_notifies_it_of_epochs(
    client: calibrd.Client, tmp_path: Path
) -> None:
    callback = huggingface.MonitorCallback(
        client, run="hf-named", loss="online_label_smoothing", classes=CLASSES
    )
    made = trainer(
        tmp_path,
        2,
        callback,
        compute_metrics=callback.compute_metrics,
        compute_loss_func=callback.compute_loss,
    )
    made.train()
    assert not torch.allclose(callback.loss.soft, torch.full((CLASSES, CLASSES), 1 / CLASSES))
    assert not callback.loss.seen.any()  # the evaluation after the last epoch had no effect on it
    assert [one.metrics.rows for one in client.run_history("hf-named")] == [ROWS, ROWS]


def test_a_monitor_without_a_loss_computes_none() -> None:
    callback = huggingface.MonitorCallback(None, run="alone")
    with pytest.raises(ValueError, match="pass a loss"):
        callback.compute_loss({"logits": torch.zeros(2, CLASSES)}, torch.zeros(2, dtype=torch.long))


def test_a_loss_not_passed_to_the_trainer_is_an_error(tmp_path: Path) -> None:
    made = trainer(tmp_path, 1, huggingface.AdaFocalCallback(None, run="alone"))
    with pytest.raises(DataError, match="no rows were observed") as caught:
        made.train()
    assert "compute_loss_func=callback.compute_loss" in caught.value.__notes__[0]


def test_the_loss_of_tokens_and_of_summed_gradients() -> None:
    callback = huggingface.AdaFocalCallback(None, run="tokens")
    logits = torch.randn(4, 5, CLASSES, requires_grad=True)
    labels = torch.randint(0, CLASSES, (4, 5))
    labels[:, 3:] = -100
    plain = AdaFocalLoss(reduction="none")(logits.reshape(-1, CLASSES), labels.reshape(-1))
    found = callback.compute_loss({"logits": logits}, labels, num_items_in_batch=40)
    assert found.item() == pytest.approx(plain.sum().item() / 40)
    assert callback.compute_loss((logits,), labels).item() == pytest.approx(plain.sum().item() / 12)
    with pytest.raises(ValueError, match="reduction 'mean'"):
        huggingface.AdaFocalCallback(None, run="sum", loss=AdaFocalLoss(reduction="sum"))


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
def test_the_guide_runs_as_pasted(
    service: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("CALIBRD_URL", service.url)
    monkeypatch.chdir(tmp_path)
    tag = 'python title="train_transformers.py"'
    (block,) = [one for one in blocks_of("docs/how-to/train.md") if one.language == tag]
    exec(compile(block.code, "docs/how-to/train.md", "exec"), {"__name__": "guide"})  # noqa: S102
    assert capsys.readouterr().out.endswith("2\n")
