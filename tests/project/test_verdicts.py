"""Verdicts: the figures behind them, their wording, and how often they mislead."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrators.errors import ParameterError
from calibrators.metrics import Interval
from calibrators.numerics.softmax import softmax
from calibrators.report.report import Report, evaluate
from calibrators.report.verdict import Gate, Verdict, decide, in_doubt, lost, together

STUDIES = Path(__file__).parent.parent.parent / "studies"
BETTER = {"debiased_squared_error": Interval(-0.02, -0.03, -0.01, 0.95)}
SAME = {"debiased_squared_error": Interval(0.0, -0.01, 0.01, 0.95)}


@pytest.fixture
def study() -> Iterator[Any]:
    sys.path.insert(0, str(STUDIES))
    yield importlib.import_module("verdicts")
    sys.path.remove(str(STUDIES))


def ruined() -> Report:
    """Return rows that are overconfident before; afterwards all have the accuracy as confidence."""
    random = np.random.default_rng(0)
    logits = 3 * random.normal(size=(2000, 2))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    accuracy = np.mean(logits.argmax(axis=1) == labels)
    chosen = (logits.argmax(axis=1)[:, None] == np.arange(2)).astype(float)
    after = chosen * accuracy + (1 - chosen) * (1 - accuracy)
    return evaluate(after, labels, before=softmax(6 * logits), draws=300)


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("nll", Interval(0.01, 0.001, 0.02, 0.95)),
        ("brier", Interval(0.0040, 0.0006, 0.0074, 0.95)),
        ("accuracy", Interval(-0.02, -0.03, -0.01, 0.95)),
        ("refinement_auroc", Interval(-0.025, -0.04, -0.01, 0.95)),
    ],
)
def test_any_loss_makes_a_trade_off(name: str, loss: Interval) -> None:
    assert decide(1000, BETTER) is Verdict.IMPROVED
    assert decide(1000, BETTER | {name: loss}) is Verdict.TRADE_OFF
    assert lost(BETTER | {name: loss}) == (name,)
    gained = Interval(-loss.value, -loss.high, -loss.low, 0.95)
    assert decide(1000, BETTER | {name: gained}) is Verdict.IMPROVED


def test_without_a_gain_a_loss_must_hold_among_five() -> None:
    """The interval of the Brier score excludes 0 on its own, but not when corrected for five."""
    loss = Interval(0.0040, 0.0006, 0.0074, 0.95)
    assert together(loss).low < 0
    assert decide(1000, SAME | {"brier": loss}) is Verdict.NO_MEASURABLE_CHANGE
    clear = Interval(0.0040, 0.0016, 0.0064, 0.95)
    assert decide(1000, SAME | {"brier": clear}) is Verdict.WORSE
    worse = {"debiased_squared_error": clear}
    assert decide(1000, worse) is Verdict.WORSE


def test_a_tenth_of_a_point_of_auroc_is_no_loss_and_a_wide_interval_is_a_doubt() -> None:
    tiny = {"refinement_auroc": Interval(-0.0008, -0.0010, -0.0006, 0.95)}
    assert decide(10**6, BETTER | tiny) is Verdict.IMPROVED
    wide = {"refinement_auroc": Interval(0.01, -0.04, 0.06, 0.95)}
    assert in_doubt(wide)
    assert decide(200, BETTER | wide) is Verdict.TRADE_OFF
    risen = {"refinement_auroc": Interval(0.10, 0.01, 0.19, 0.95)}
    assert decide(200, BETTER | risen) is Verdict.IMPROVED


def test_every_form_names_losses_and_their_size() -> None:
    report = ruined()
    assert report.verdict is Verdict.TRADE_OFF
    assert "refinement_auroc" in report.lost
    found = report.change["refinement_auroc"]
    figures = f"{100 * found.value:+.2f} points [{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
    assert f"AUROC of correct vs. wrong {figures}" in report.verdict_sentence
    bundle = report._repr_mimebundle_()
    subtitle = " ".join(bundle["application/vnd.vegalite.v5+json"]["title"]["subtitle"])
    for text in (report.summary(), bundle["text/html"], subtitle):
        assert figures in text


def test_a_report_without_intervals_of_ranking_is_read_and_explained() -> None:
    stored = ruined().to_dict()
    for held in (stored["intervals"], stored["before"]["intervals"], stored["change"]):
        for name in ("refinement_auroc", "aurc"):
            del held[name]
    stored["verdict"] = "improved"
    read = Report.from_dict(json.loads(json.dumps(stored)))
    assert "refinement_auroc" not in read.lost
    assert read.verdict_sentence.startswith("calibration is better")
    alone = evaluate([[0.9, 0.1], [0.6, 0.4]], [0, 1], draws=2)
    assert (alone.lost, alone.verdict_sentence) == ((), "")


def test_a_calibrated_model_seldom_gets_a_verdict_of_change(study: Any) -> None:
    """60 sets of each kind; the study uses 1,000. At 5 %, 3 are expected; 9 are too many."""
    for name, n, k in (("temperature scaling", 200, 2), ("two equal models", 300, 10)):
        found = study.verdicts(study.Case("calibrated", name, n, k), range(60))
        assert found["improved"] + found["worse"] <= 8, found


@pytest.mark.parametrize(
    "name",
    [
        "histogram of 2 bins",
        "confidences permuted",
        "confidence constant",
        "half the classes lost",
    ],
)
def test_a_map_that_ruins_ranking_or_accuracy_is_never_improved(study: Any, name: str) -> None:
    found = study.verdicts(study.Case("ruined", name, 200, 10), range(40))
    assert found["improved"] == 0, found


def test_a_map_that_helps_is_called_improved(study: Any) -> None:
    found = study.verdicts(study.Case("repaired", "temperature scaling", 5000, 10), range(20))
    assert found["improved"] >= 18, found


def at_confidence(n: int, gap: float, seed: int) -> Report:
    """Return binary rows at many confidences, whose accuracy is lower by ``gap``."""
    random = np.random.default_rng(seed)
    confidence = random.uniform(0.6 + max(gap, 0.0), 1.0, n)
    labels = (random.random(n) >= confidence - gap).astype(int)
    return evaluate(np.column_stack((confidence, 1 - confidence)), labels, draws=2, seed=seed)


def test_a_calibrated_model_does_not_fail_an_ece_gate() -> None:
    """Its true ECE is 0 and the measured ECE is noise: at most one in forty may fail."""
    reports = [at_confidence(400, 0.0, seed) for seed in range(120)]
    assert min(report.metrics["ece"] or 0.0 for report in reports) > 0.005
    assert sum(report.gate(1e-9, "ece") is Gate.FAIL for report in reports) <= 9


@pytest.mark.parametrize("gap", [0.03, 0.15])
def test_the_interval_of_a_gate_of_the_ece_holds_the_truth(gap: float) -> None:
    held = 0
    for seed in range(100):
        found = at_confidence(500, gap, seed).gate_interval("ece")
        held += found.low <= gap <= found.high
    assert held >= 90


def test_a_gate_of_the_ece_decides_by_the_interval_it_names() -> None:
    report = at_confidence(5000, 0.1, 0)
    found = report.gate_interval("ece")
    assert found.value == pytest.approx(report.metrics["ece"], abs=1e-12)
    assert 0 < found.low < found.value < found.high
    for limit, expected in (
        (found.low * 0.99, Gate.FAIL),
        (found.value, Gate.INSUFFICIENT_DATA),
        (found.high, Gate.PASS),
    ):
        assert report.gate(limit, "ece") is expected
    root = report.gate_interval()
    assert root.value == pytest.approx(report.metrics["ece_debiased"])
    assert report.gate(root.high) is Gate.PASS
    assert Report.from_dict(json.loads(json.dumps(report.to_dict()))).gate_interval("ece") == found
    with pytest.raises(ParameterError, match="'ece'"):
        report.gate(0.1, "nll")


def test_rows_that_are_all_right_pass_no_gate_of_the_ece_by_that_alone() -> None:
    """100 correct rows of 100 are not rare at an accuracy of 0.965."""
    rows = np.tile([0.999, 0.001], (100, 1))
    report = evaluate(rows, np.zeros(100, int), draws=2)
    assert report.gate(0.03, "ece") is Gate.INSUFFICIENT_DATA
    assert report.gate(0.05, "ece") is Gate.PASS
