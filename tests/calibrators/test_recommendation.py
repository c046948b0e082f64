"""The recommended one of several fits, and the reason."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from calibrators import CalibrationSet, Report, fit_and_judge
from calibrators.comparison.judged_rows import JudgedRows
from calibrators.comparison.recommendation import Candidate, recommend
from calibrators.fitting.evaluation import Judged
from calibrators.metrics import Interval
from calibrators.numerics.softmax import softmax
from calibrators.registry import all_maps, all_methods, make_recipe
from calibrators.report.verdict import Verdict


def data(n: int = 3000) -> CalibrationSet:
    """Return logits that are three times too large, and labels."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(n, 4)) * 2
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return CalibrationSet(3 * logits, labels)


DATA = data()


def judged(method: str) -> Judged:
    return fit_and_judge(make_recipe(method, {}), DATA)


def candidate(method: str, *, rows: bool = True) -> Candidate:
    made = judged(method)
    return Candidate(method, made.map.method, made.report, made.rows if rows else None)


def with_report(one: Candidate, **facts: object) -> Candidate:
    return one._replace(report=replace(one.report, **facts))


def test_a_tie_goes_to_the_simpler_method_in_whatever_order() -> None:
    some = [candidate(one) for one in ("vector", "ets", "temperature", "identity")]
    for order in (some, some[::-1]):
        found = recommend(order)
        assert order[found.place].name == "temperature"
        lowest = min(order, key=lambda one: one.report.metrics["nll"])
        if lowest.name != "temperature":
            assert f"not measurably higher than the lowest, that of {lowest.name}" in found.reason


def test_the_lowest_nll_wins_where_the_difference_is_measurable() -> None:
    found = recommend([candidate("identity"), candidate("temperature")])
    assert found.place == 1
    assert found.reason.startswith("temperature has the lowest NLL (")
    assert "of the 2 that preserve accuracy and ranking" in found.reason


def test_without_judged_rows_nothing_ties() -> None:
    some = [candidate(one, rows=False) for one in ("vector", "ets", "temperature")]
    found = recommend(some)
    assert found.place == min(range(3), key=lambda place: some[place].report.metrics["nll"])


def test_worse_maps_are_not_recommended() -> None:
    best, other = candidate("temperature"), candidate("identity")
    fell = Interval(-0.1, -0.12, -0.08, 0.95)
    lossy = with_report(best, change=best.report.change | {"accuracy": fell})
    found = recommend([lossy, other])
    assert found.place == 1
    assert found.reason.endswith("; left out: temperature loses accuracy")
    worse = with_report(best, verdict=Verdict.WORSE)
    assert recommend([worse, other]).reason.endswith("left out: temperature was judged worse")
    few = with_report(other, verdict=Verdict.INSUFFICIENT_DATA)
    found = recommend([worse, few])
    assert found.place is None
    assert found.reason == (
        "none can be recommended: temperature was judged worse, "
        "identity was judged insufficient data"
    )


def test_a_map_that_only_looks_good_on_other_rows_ties_with_none() -> None:
    first = candidate("temperature")
    rows = JudgedRows.of(DATA, np.arange(50), softmax(DATA.logits[:50]), fitted_on=DATA)
    assert recommend([first, candidate("identity")._replace(rows=rows)]).place == 0


def test_every_method_is_ranked() -> None:
    ranks = {method: kind.complexity for method, kind in all_maps().items()}
    assert len(set(ranks.values())) == len(ranks)
    assert max(ranks.values()) < math.inf, "give its map a complexity"
    chosen_by_others = {"auto"}
    assert set(all_methods()) - chosen_by_others == set(ranks)
    small, large = ("identity", "temperature", "vector"), ("matrix", "dirichlet")
    assert max(ranks[one] for one in small) < min(ranks[one] for one in large)
    assert [ranks[one] for one in small] == sorted(ranks[one] for one in small)


def test_a_method_that_is_unknown_comes_last() -> None:
    known = [candidate("isotonic_one_vs_rest"), candidate("isotonic_one_vs_rest")]
    first, second = known[0]._replace(method="of another release"), known[1]
    assert recommend([first, second]).place == 1


def test_a_report_alone_can_be_a_candidate() -> None:
    report = Report.from_dict(judged("temperature").report.to_dict())
    assert recommend([Candidate("v1", "temperature", report)]).place == 0
