"""Losses that take embeddings or sample indices, in a real Trainer with a small BERT."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import calibrd
from calibrators.losses import Loss, make_loss
from calibrd.training import huggingface

ROWS, CLASSES, LENGTH = 24, 3, 6


def bert(dropout: float = 0.0) -> Any:
    """Return a BERT with one small layer, created from a configuration."""
    import transformers  # imported here, so that collecting tests does not load it

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=LENGTH,
        num_labels=CLASSES,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return transformers.BertForSequenceClassification(config)


def rows() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(0, 30, (ROWS, LENGTH), generator=generator)
    labels = words[:, 0] % CLASSES
    return [
        {"input_ids": row, "labels": int(label), "index": number}
        for number, (row, label) in enumerate(zip(words, labels, strict=True))
    ]


def trainer(folder: Path, model: Any, callback: Any, rate: float = 0.1, **arguments: Any) -> Any:
    """A Trainer with plain gradient descent."""
    import transformers

    chosen = {
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 16,
        "eval_strategy": "epoch",
        "remove_unused_columns": False,
        **arguments,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    steady = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    evaluated = rows()[: ROWS // 2]
    return transformers.Trainer(
        model,
        transformers.TrainingArguments(
            output_dir=str(folder),
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
            logging_strategy="no",
            max_grad_norm=0.0,
            **chosen,
        ),
        train_dataset=rows(),
        eval_dataset=evaluated,
        callbacks=[callback],
        compute_loss_func=callback.compute_loss,
        compute_metrics=callback.compute_metrics,
        optimizers=(optimizer, steady),
    )


def batch(count: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    chosen = rows()[:count]
    words = torch.stack([one["input_ids"] for one in chosen])
    return words, torch.tensor([one["labels"] for one in chosen])


def by_hand(model: Any, loss: Loss, count: int = ROWS) -> torch.Tensor:
    """Return the loss on the first samples, with the pooled output as embeddings (n, d)."""
    words, labels = batch(count)
    output = model(words)
    pooled = model.bert(words).pooler_output
    found: torch.Tensor = loss(output.logits, labels, embeddings=pooled)
    return found


def test_refcal_trains_on_the_input_of_the_head(client: calibrd.Client, tmp_path: Path) -> None:
    callback = huggingface.MonitorCallback(
        client, run="hf-refcal", head="classifier", loss="refcal", weight=0.5
    )
    plain = huggingface.MonitorCallback(None, run="alone", loss="cross_entropy")
    moved = {}
    for name, one in (("refcal", callback), ("plain", plain)):
        model = bert()
        whole = {"per_device_train_batch_size": ROWS, "max_steps": 1}
        made = trainer(tmp_path, model, one, remove_unused_columns=True, **whole)
        made.train()
        moved[name] = model
    expected = bert()
    by_hand(expected, make_loss("refcal", weight=0.5)).backward()
    for (name, found), start, other in zip(
        moved["refcal"].named_parameters(),
        expected.parameters(),
        moved["plain"].parameters(),
        strict=True,
    ):
        torch.testing.assert_close(found, start - 0.1 * start.grad, msg=name)
        if name == "bert.pooler.dense.weight":
            assert not torch.allclose(found, other)
    assert len(client.run_history("hf-refcal")) == 1


def test_refcal_is_evaluated_on_the_input_of_the_head(tmp_path: Path) -> None:
    model = bert(dropout=0.3)
    callback = huggingface.MonitorCallback(None, run="alone", head="classifier", loss="refcal")
    made = trainer(tmp_path, model, callback, per_device_eval_batch_size=ROWS)
    found = made.evaluate()  # before any training
    with torch.no_grad():
        wanted = by_hand(model.eval(), make_loss("refcal").eval(), ROWS // 2)
    assert found["eval_loss"] == pytest.approx(wanted.item(), rel=1e-5)
    made.train()
    assert made.evaluate()["eval_loss"] != found["eval_loss"]
    assert made.predict(rows()).predictions.shape == (ROWS, CLASSES)


@pytest.mark.parametrize("within_refcal", [False, True])
def test_correctness_ranking_knows_each_sample_by_its_index(
    tmp_path: Path, within_refcal: bool
) -> None:
    ranked: dict[str, Any] = {"loss": "correctness_ranking", "samples": ROWS}
    if within_refcal:
        both = make_loss("refcal", loss="correctness_ranking", loss_params={"samples": ROWS})
        ranked = {"loss": both, "head": "classifier"}
    callback = huggingface.MonitorCallback(None, run="alone", **ranked)
    model = bert()
    made = trainer(tmp_path, model, callback, rate=0.0, num_train_epochs=3)
    made.train()
    words, labels = batch()
    with torch.no_grad():
        logits = model(words).logits
    right = (logits.argmax(dim=1) == labels).int()
    history = getattr(callback.loss, "calibration", callback.loss)
    assert 0 < int(right.sum()) < ROWS
    assert torch.equal(history.right, 3 * right)
    assert int(history.epochs) == 3
    half = ROWS // 2
    plain = F.cross_entropy(logits[:half], labels[:half]).item()
    if not within_refcal:  # an evaluation has no history
        assert made.evaluate()["eval_loss"] == pytest.approx(plain, rel=1e-5)


def test_refcal_of_tokens_leaves_out_the_ignored_ones(tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(0)
    model = transformers.BertForTokenClassification(bert().config)
    words, _ = batch()
    labels = words % CLASSES
    labels[:, 4:] = -100
    data = [{"input_ids": row, "labels": one} for row, one in zip(words, labels, strict=True)]
    callback = huggingface.MonitorCallback(None, run="alone", head="classifier", loss="refcal")
    made = trainer(tmp_path, model, callback, per_device_eval_batch_size=ROWS)
    found = made.evaluate(data)
    with torch.no_grad():
        output = model.eval()(words, output_hidden_states=True)
    kept = labels != -100
    wanted = make_loss("refcal").eval()(
        output.logits[kept], labels[kept], embeddings=output.hidden_states[-1][kept]
    )
    assert found["eval_loss"] == pytest.approx(wanted.item(), rel=1e-5)


def test_a_copy_of_a_watched_model_works_alone(tmp_path: Path) -> None:
    model = bert()
    callback = huggingface.MonitorCallback(None, run="alone", head="classifier", loss="refcal")
    made = trainer(tmp_path, model, callback)
    words, _ = batch()
    with torch.no_grad():
        torch.testing.assert_close(copy.deepcopy(model)(words).logits, model(words).logits)
    made.train()
    plain = huggingface.MonitorCallback(None, run="alone", loss="cross_entropy")
    found = trainer(tmp_path, model, plain).evaluate()  # it does not use the column index
    assert found["eval_loss"] == pytest.approx(found["eval_nll"], rel=1e-5)


def test_a_model_made_for_training_is_watched(tmp_path: Path) -> None:
    import transformers

    callback = huggingface.MonitorCallback(None, run="alone", head="classifier", loss="refcal")
    made = transformers.Trainer(
        model_init=lambda: bert(),
        args=transformers.TrainingArguments(
            str(tmp_path), max_steps=1, report_to=[], use_cpu=True, disable_tqdm=True
        ),
        train_dataset=rows(),
        callbacks=[callback],
        compute_loss_func=callback.compute_loss,
    )
    made.train()
    made.train()  # another model


def test_missing_inputs_are_named(tmp_path: Path) -> None:
    named = {"loss": "correctness_ranking", "samples": ROWS}
    with pytest.raises(ValueError, match=r"refcal takes embeddings.*as head="):
        huggingface.MonitorCallback(None, run="alone", loss="refcal")
    with pytest.raises(ValueError, match="only for a loss that takes embeddings, not seca"):
        huggingface.MonitorCallback(None, run="alone", loss="seca", head="classifier")
    callback = huggingface.MonitorCallback(None, run="alone", loss="refcal", head="clasifier")
    with pytest.raises(ValueError, match=r"such as its last layer \['classifier'\], got 'clasi"):
        trainer(tmp_path, bert(), callback)
    callback = huggingface.MonitorCallback(None, run="alone", **named)
    with pytest.raises(ValueError, match=r"TrainingArguments\(remove_unused_columns=False\)"):
        trainer(tmp_path, bert(), callback, remove_unused_columns=True)
    callback = huggingface.MonitorCallback(None, run="alone", **named)
    made = trainer(tmp_path, bert(), callback)
    for row in made.train_dataset:
        del row["index"]
    with pytest.raises(ValueError, match="needs a column 'index' with each sample's position"):
        made.train()
