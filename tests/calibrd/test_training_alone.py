"""AdaFocal and Monitor without a service, and the behaviour of their copies."""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import pickle
import subprocess
import sys

import pytest
import torch
from helpers.live_service import ROOT
from helpers.training_passes import passes

from calibrators import DataError
from calibrators.adafocal import AdaFocalState, BinStatistics, Settings
from calibrators.losses.adafocal import AdaFocalLoss
from calibrd.training import AdaFocal, Monitor


def test_it_is_the_pure_update_of_what_was_observed() -> None:
    steered = AdaFocal(None, run="alone", bins=5, rate=3.0)
    state = AdaFocalState.begin(Settings(bins=5, rate=3.0))
    for logits, labels in passes(3):
        steered.observe(logits[:20], labels[:20])
        steered.observe(logits[20:], labels[20:])
        summary = steered.step()
        statistics = BinStatistics.from_logits(logits.numpy(), labels.numpy())
        state = state.update(statistics)
        assert (summary.rows, steered.state.step) == (60, state.step)
        assert steered.state.is_near(state, 1e-6)
    wanted = AdaFocalLoss(steered.state)(logits, labels)
    assert steered.loss(logits, labels) == wanted


def test_a_checkpoint_continues_where_it_was_created() -> None:
    first = AdaFocal(None, run="kept", rate=2.0)
    (logits, labels), *others = passes(3)
    first.observe(logits, labels)
    first.step()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    document = torch.load(file, weights_only=True)
    given = AdaFocal(None, run="kept", rate=2.0, resume=document)
    loaded = AdaFocal(None, run="kept", rate=2.0)
    loaded.load_state_dict(document)
    for batch in others:
        for one in (first, given, loaded):
            one.observe(*batch)
            one.step()
        assert first.state == given.state == loaded.state
    with pytest.raises(ValueError, match=r"rate=2.0.*rate=1.0"):
        AdaFocal(None, run="kept").load_state_dict(document)


def test_a_monitor_counts_its_steps() -> None:
    monitor = Monitor(None, run="watched")
    for logits, labels in passes(2):
        monitor.observe(logits, labels)
        monitor.step()
    again = Monitor(None, run="watched", resume=monitor.state_dict())
    assert (monitor.steps, again.steps) == (2, 2)
    monitor.observe(logits, labels)
    monitor.discard()
    with pytest.raises(DataError, match="no rows were observed"):
        monitor.step()
    monitor.load_state_dict({"step": 1})
    assert monitor.steps == 1


def test_copies_lose_their_part_but_keep_the_loss() -> None:
    steered = AdaFocal(None, run="copied")
    logits, labels = passes(1)[0]
    for made in (copy.deepcopy(steered), pickle.loads(pickle.dumps(steered))):  # noqa: S301
        assert made.loss(logits, labels) == steered.loss(logits, labels)
        with pytest.raises(RuntimeError, match="this AdaFocal is a copy"):
            made.observe(logits, labels)
        with pytest.raises(RuntimeError, match="this AdaFocal is a copy"):
            made.step()
        made.close()
    steered.observe(logits, labels)
    steered.step()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_does_not_observe() -> None:
    steered = Monitor(None, run="forked")

    def forked(queue: multiprocessing.SimpleQueue) -> None:
        try:
            steered.observe([[1.0, 0.0]], [0])
        except RuntimeError as error:
            queue.put(str(error))

    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=forked, args=(queue,))
    process.start()
    assert "belongs to the parent process" in queue.get()
    process.join()


def test_a_monitor_needs_no_torch() -> None:
    code = """
import sys
sys.modules["torch"] = None
from calibrd.training import Monitor
monitor = Monitor(None, run="plain")
monitor.observe([[2.0, 0.0], [0.0, 1.0]], [0, 1])
print(monitor.step().rows)
try:
    from calibrd.training import AdaFocal
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == [
        "2",
        "calibrd.training.AdaFocal needs torch: pip install 'calibrd[train]'",
    ]


def test_it_is_not_loaded_with_the_sdk() -> None:
    code = (
        "import sys, calibrd; print([m for m in sys.modules if m.startswith('calibrd.training')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rank": 0}, "pass both rank= and world_size="),
        ({"rank": 3, "world_size": 3, "session": "job"}, "rank must lie in"),
        ({"rank": 0, "world_size": 2}, "session is required"),
        ({"rank": 0, "world_size": 2, "session": "job"}, "client is required"),
        ({"budget": 0}, "budget must be"),
        ({"session": "../job"}, "session must be 1 to 80 characters.*, got '../job'"),
        ({"session": "7" * 81}, "session must be 1"),
        *(
            ({"budget": one}, "budget must be")
            for one in (-1, float("nan"), float("inf"), "2", 1e12)
        ),
        ({"run": "No Name"}, "a run's name"),
        ({"run": "-x"}, "begin with a letter or digit, got '-x'"),
        ({"run": None}, "a run's name"),
        ({"resume": {}}, "with 'step', got"),
        ({"resume": {"step": -5}}, "step must be a non-negative integer, got -5"),
    ],
)
def test_wrong_arguments_are_named(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Monitor(None, **{"run": "wrong", **given})  # type: ignore[arg-type]


def test_ranks_unknown_to_torch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(RuntimeError, match="init_process_group"):
        Monitor(None, run="early")
    with pytest.raises(TypeError, match="got int"):
        Monitor(5, run="strange", rank=0, world_size=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"gamma_mix.*gamma_max, gamma_min"):
        AdaFocal(None, run="typo", rank=0, world_size=1, gamma_mix=3)


def test_foreign_checkpoints_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    monitor, steered = Monitor(None, run="one"), AdaFocal(None, run="one")
    with pytest.raises(ValueError, match=r"with 'state', got \['run', 'step'\]"):
        AdaFocal(None, run="one", resume=monitor.state_dict())
    with pytest.raises(ValueError, match="non-negative integer, got -5"):
        monitor.load_state_dict({"step": -5})
    with pytest.raises(TypeError, match="loss must be an AdaFocalLoss, got CrossEntropyLoss"):
        AdaFocal(None, run="one", loss=torch.nn.CrossEntropyLoss())  # type: ignore[arg-type]
    assert caplog.messages == []
    AdaFocal(None, run="two", resume=steered.state_dict())
    Monitor(None, run="two").load_state_dict(monitor.state_dict())
    assert caplog.messages == ["two: continuing from a checkpoint of a different run, one"] * 2
