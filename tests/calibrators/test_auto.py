"""Auto chooses correctly if the truth is known, explains its choice, and uses only the fit set."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from helpers.samples import draw, two_regimes

from calibrators import (
    CalibrationSet,
    FitCancelled,
    FitError,
    ParameterError,
    all_methods,
    fit_and_judge,
)
from calibrators.errors import BoundarySolution, OutOfTime, SmallSample
from calibrators.fitting.context import FitContext
from calibrators.methods._cross_validation import Contest
from calibrators.methods.additive import Additive, AdditiveMap
from calibrators.methods.auto import Auto
from calibrators.methods.temperature import TemperatureMap, TemperatureScaling
from calibrators.metrics import ece
from calibrators.numerics.softmax import softmax


def test_default_is_additive_and_is_recorded() -> None:
    data = draw(1500, 4, temperature=2.5)
    fitted = Auto().fit(data)
    assert isinstance(fitted, AdditiveMap)
    info = fitted.fit_info
    assert (info["chosen_by"], info["winner"], info["candidates"]) == ("auto", "additive", [])
    np.testing.assert_array_equal(fitted.heights, Additive().fit(data).heights)
    assert fitted.made_by == {"auto", "additive"}


@pytest.mark.parametrize("candidates", [(), ("smart",)])
def test_temperature_scaling_is_fitted_once_on_all_rows(
    candidates: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, rows = draw(600, 4, temperature=2.5), []
    fit = TemperatureScaling._fit

    def counted(
        recipe: TemperatureScaling, data: CalibrationSet, context: FitContext
    ) -> TemperatureMap:
        rows.append(data.n)
        return fit(recipe, data, context)

    monkeypatch.setattr(TemperatureScaling, "_fit", counted)
    Auto(candidates=candidates).fit(data)
    assert rows.count(data.n) == 1


def test_leaves_a_calibrated_model_nearly_unchanged() -> None:
    for seed in range(3):
        data = draw(4000, 4, temperature=1.0, seed=seed)
        moved = Auto().fit(data).apply(data.logits) - softmax(data.logits)
        assert np.abs(moved).mean() < 0.01


def test_corrects_errors_that_one_temperature_cannot() -> None:
    fit, test = two_regimes(6000, 0)[0], two_regimes(6000, 1)[0]
    errors = {
        recipe.name: ece(recipe.fit(fit).apply(test.logits), test.labels)
        for recipe in (TemperatureScaling(), Auto())
    }
    assert errors["auto"] < 0.5 * errors["temperature"]


def test_records_what_was_tried_and_why() -> None:
    names = ("temperature", "spline")
    fitted = Auto(candidates=names).fit(two_regimes(3000, 0)[0])
    tried = {one["method"]: one for one in fitted.fit_info["candidates"]}
    assert list(tried) == ["additive", *names]
    assert fitted.fit_info["baseline"] == "additive"
    assert tried["additive"]["change"] is None
    for one in tried.values():
        for name in ("debiased_squared_error", "ece", "nll", "brier"):
            assert one[name]["low"] <= one[name]["value"] <= one[name]["high"]
    assert tried["temperature"]["change"]["low"] > 0
    assert fitted.fit_info["winner"] == "additive"
    assert "compared with: temperature, spline" in fitted.fit_info["why"]


def test_few_rows_lean_on_the_prior() -> None:
    data = draw(19, 3, temperature=6.0, seed=1)
    with pytest.warns(SmallSample, match="19 rows are too few"):
        fitted = Auto().fit(data)
    free = TemperatureScaling().fit(data).temperature
    assert 1 < fitted.temperature < free


def test_all_right_does_not_become_certainty() -> None:
    data = draw(300, 3, temperature=1.0)
    right = CalibrationSet(data.logits, data.logits.argmax(axis=1))
    with pytest.warns(BoundarySolution, match="every prediction on the fit set is correct"):
        fitted = Auto().fit(right)
    assert 0.05 < fitted.temperature < 1


def test_candidates_can_be_named() -> None:
    data = draw(600, 3, temperature=2.0)
    fitted = Auto(candidates=("temperature",)).fit(data)
    tried = [one["method"] for one in fitted.fit_info["candidates"]]
    assert tried == ["additive", "temperature"]
    with pytest.raises(ParameterError, match="each method once"):
        Auto(candidates=("spline", "spline"))
    with pytest.raises(ParameterError, match="must not name 'auto'"):
        Auto(candidates=("auto",))
    with pytest.raises(ParameterError, match="did you mean 'smart'"):
        Auto(candidates=("smrt",))


def test_progress_counts_folds() -> None:
    seen: list[int] = []
    recipe = Auto(candidates=("temperature", "isotonic"))
    recipe.fit(draw(400, 3), progress=lambda step, total, loss: seen.append(total - step))
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == 0
    assert np.unique(seen).size == len(seen) == 13


@pytest.mark.parametrize("factor", [1e-3, 1.0, 64.0])
def test_any_scale_of_many_classes(factor: float) -> None:
    data = draw(400, 200, temperature=2.0)
    scaled = CalibrationSet((data.logits * factor).astype(np.float32), data.labels)
    fitted = Auto().fit(scaled)
    assert fitted.base_temperature == pytest.approx(2 * factor, rel=0.3)
    own = Auto().fit(data)
    np.testing.assert_allclose(fitted.apply(scaled.logits), own.apply(data.logits), atol=1e-4)


def test_methods_that_change_the_class_are_tried_only_on_request() -> None:
    data = draw(600, 3)
    with pytest.raises(ParameterError, match="'vector', which may change the predicted class"):
        Auto(candidates=("vector",))
    fitted = Auto(candidates=("vector",), allow_class_change=True).fit(data)
    assert [one["method"] for one in fitted.fit_info["candidates"]] == [
        "additive",
        "vector",
    ]


def test_methods_for_comparison_are_tried_only_if_they_are_named() -> None:
    by_default = set(Auto(allow_class_change=True)._recipes())
    assert {"vector", "dirichlet"} < by_default
    assert not {name for name in by_default if all_methods()[name].for_comparison}
    assert all_methods()["cts"].for_comparison
    named = Auto(candidates=("cts", "bbq"), allow_class_change=True).fit(draw(600, 3))
    assert [one["method"] for one in named.fit_info["candidates"]] == ["additive", "cts", "bbq"]


def test_chooses_a_class_changing_method_if_it_matches_the_truth() -> None:
    rng = np.random.default_rng(0)
    truth = draw(4000, 4, temperature=1.0)
    bias = np.array([3.0, 0.0, -1.0, 0.0])
    data = CalibrationSet(truth.logits + bias, truth.labels)
    fitted = Auto(candidates=("temperature", "vector"), allow_class_change=True).fit(data)
    assert fitted.method == "vector"
    unseen = draw(4000, 4, temperature=1.0, seed=int(rng.integers(1, 99)))
    right = fitted.apply(unseen.logits + bias).argmax(axis=1) == unseen.labels
    own = (unseen.logits + bias).argmax(axis=1) == unseen.labels
    assert right.mean() > own.mean() + 0.05


def test_with_class_changes_the_likelihood_decides() -> None:
    """Isotonic has the lower calibration error, but matrix scaling has the better likelihood."""
    rng = np.random.default_rng(3)
    truth = rng.normal(size=(3000, 4)) * 2
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
    swapped = truth[:, [1, 0, 2, 3]]  # two columns swapped
    names = ("temperature", "isotonic", "matrix")
    fitted = Auto(candidates=names, allow_class_change=True).fit(CalibrationSet(swapped, labels))
    assert (fitted.method, fitted.fit_info["score"]) == ("matrix", "nll")
    assert "its out-of-fold NLL is lower than additive's" in fitted.fit_info["why"]
    tried = {one["method"]: one for one in fitted.fit_info["candidates"]}
    assert tried["matrix"]["change"]["high"] < -0.2
    error = "debiased_squared_error"
    assert tried["isotonic"][error]["value"] < tried["matrix"][error]["value"]
    assert fitted.apply(swapped).argmax(axis=1).tolist() != swapped.argmax(axis=1).tolist()


def test_segmented_is_tried_only_on_request() -> None:
    """A map with segments needs them in every call, so it is never chosen by default."""
    data = draw(600, 3)
    with pytest.raises(FitError, match="the method 'segmented' needs the segment of each row"):
        Auto(candidates=("segmented",)).fit(data)
    names = ["web", "app"] * 300
    with_segments = CalibrationSet(data.logits, data.labels, names)
    (told,) = Auto().fit(with_segments).fit_info["left_out"]
    assert (told["method"], told["why"][-30:]) == ("segmented", "add it to candidates to try it")
    logits = data.logits.copy()
    logits[::2] *= 4
    differing = CalibrationSet(logits, data.labels, names)
    fitted = Auto(candidates=("temperature", "segmented"), allow_class_change=True).fit(differing)
    assert (fitted.method, fitted.fit_info["base"]) == ("segmented", "temperature")
    assert fitted.fit_info["baseline"] == "additive"
    assert fitted.fit_info["left_out"] == []


def test_the_budget_is_kept_and_skipped_methods_are_recorded() -> None:
    data = draw(3000, 60)
    with pytest.warns(OutOfTime, match=r"budget of 0\.05 seconds was too short for: .*dirichlet"):
        fitted = Auto(budget=0.05, candidates=("dirichlet",), allow_class_change=True).fit(data)
    (left_out,) = fitted.fit_info["left_out"]
    assert left_out["method"] == "dirichlet"
    assert re.search(r"stopped after|needs about|not started", left_out["why"])
    assert fitted.fit_info["budget_seconds"] == 0.05
    assert [one["method"] for one in fitted.fit_info["candidates"]] == ["additive"]


class Endless(TemperatureScaling):
    """A fit that is still running when its time is up."""

    def _fit(self, data: CalibrationSet, context: FitContext) -> TemperatureMap:
        while True:
            context.cancelled()


def test_seconds_of_stopped_methods_are_recorded() -> None:
    context = FitContext("cpu", None, None)
    contest = Contest(draw(300, 3), context, folds=4, seed=0, budget=0.3)
    trials = contest.run({"temperature": TemperatureScaling(), "endless": Endless()})
    assert list(trials) == ["temperature"]
    (left_out,) = contest.left_out
    assert re.search("stopped after|not started", left_out["why"])
    assert set(context.seconds) >= {"temperature"}
    assert ("endless" in context.seconds) == ("stopped" in left_out["why"])


class SlowLater(TemperatureScaling):
    """A fit that is quick the first time and endless the second time."""

    begun = 0

    def _fit(self, data: CalibrationSet, context: FitContext) -> TemperatureMap:
        type(self).begun += 1
        while type(self).begun > 1:
            context.cancelled()
        return super()._fit(data, context)


def test_a_candidate_stopped_in_a_later_fold_is_left_out_once() -> None:
    contest = Contest(draw(300, 3), FitContext("cpu", None, None), folds=4, seed=0, budget=0.3)
    trials = contest.run({"temperature": TemperatureScaling(), "later": SlowLater()})
    assert list(trials) == ["temperature"]
    assert [one["method"] for one in contest.left_out] == ["later"]


@pytest.mark.parametrize("budget", [1e-6, 0.01, 0.05, 0.1])
def test_a_budget_may_end_anywhere(budget: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutOfTime)
        fitted = Auto(budget=budget, candidates=("isotonic", "spline", "pts")).fit(draw(2000, 5))
    info = fitted.fit_info
    names = [one["method"] for one in (*info["candidates"], *info["left_out"])]
    assert sorted(names) == ["additive", "isotonic", "pts", "spline"]


def test_cancelling_is_not_mistaken_for_the_budget() -> None:
    calls = iter(range(10**6))
    with pytest.raises(FitCancelled):
        Auto(candidates=("smart",)).fit(draw(600, 3), cancel=lambda: next(calls) > 40)


def test_the_report_says_how_long_each_candidate_took() -> None:
    recipe = Auto(candidates=("temperature", "isotonic"))
    fitted, report = fit_and_judge(recipe, draw(1200, 3))
    assert set(report.fit["seconds"]) == {"additive", "temperature", "isotonic"}
    assert all(0 < taken < 60 for taken in report.fit["seconds"].values())
    assert "seconds" not in fitted.fit_info


def test_the_base_is_included_whatever_is_named() -> None:
    data = draw(2000, 4)  # three times too large, which a temperature corrects
    with pytest.warns(OutOfTime, match="too short for: spline"):
        fitted = Auto(candidates=("spline",), budget=1e-9).fit(data)
    assert (fitted.method, fitted.fit_info["baseline"]) == ("additive", "additive")
