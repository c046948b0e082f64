"""Charts of training runs show the data of the history."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers.run_histories import history

from calibrators import charts
from calibrators.charts.run_layers import MAX_BINS, MAX_POINTS
from calibrators.charts.theme import SCHEMA

STEPS = history(40, partial=(4, 5), unverified=(7,), resumed_after=20)


class Drawn:
    """The marks of a chart, without axes and legends."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._svg = ElementTree.fromstring(charts.to_svg(spec))  # noqa: S314
        self.words = " ".join(text for text in self._svg.itertext() if text.strip())

    def marks(self, kind: str) -> list[ElementTree.Element]:
        """Return the marks of a kind, such as ``symbol``."""
        return [
            one
            for group in self._svg.iter()
            if group.get("class", "").startswith(f"mark-{kind} role-mark")
            for one in group.iter()
            if one.tag.endswith(("path", "line"))
        ]

    def told(self, word: str) -> int:
        """Return the number of symbols whose label for screen readers contains a word."""
        return sum(word in one.get("aria-label", "") for one in self.marks("symbol"))


def test_a_line_for_each_bin_and_a_mark_for_each_switch() -> None:
    drawn = Drawn(charts.run_gammas(STEPS))
    assert len(drawn.marks("line")) == 15
    switched = [(step, number) for step in STEPS for number in step["switched"]]
    down = sum(step["gammas"][number] < 0 for step, number in switched)
    assert down > 5
    assert len(switched) - down > 5
    assert drawn.told("mark: to inverse-focal") == down
    assert drawn.told("mark: to focal") == len(switched) - down
    assert drawn.told("gamma: ") - len(switched) == 15 * len(STEPS)


@pytest.mark.parametrize("name", ["gammas", "gaps", "errors", "nll", "accuracy"])
def test_partial_and_unverified_steps_and_new_sessions_are_marked(name: str) -> None:
    drawn = Drawn(charts.run_charts(STEPS)[name])
    assert drawn.told("mark: partial step; ranks: 0, 2; of: 4") == 2
    assert drawn.told("mark: unverified step") == 1
    sessions = [one for one in drawn.marks("rule") if "session" in one.get("aria-label", "")]
    assert len(sessions) == 1
    assert "step: 21; session: again" in sessions[0].get("aria-label", "")


def test_every_point_describes_its_bin() -> None:
    drawn = Drawn(charts.run_gaps(STEPS[:2]))
    bins = STEPS[1]["bins"]
    gap = f"{bins['confidence'][3] - bins['accuracy'][3]:+.4f}".replace("-", "\N{MINUS SIGN}")
    (found,) = (
        one.get("aria-label", "")
        for one in drawn.marks("symbol")
        if one.get("aria-label", "").startswith("step: 2; ")
        and "; bin: 3; " in one.get("aria-label", "")
    )
    assert f"C: {bins['confidence'][3]:.4f}; A: {bins['accuracy'][3]:.4f}" in found
    assert f"C \N{MINUS SIGN} A: {gap}" in found


def test_metrics_are_those_of_the_steps() -> None:
    drawn = Drawn(charts.run_errors(STEPS[:3]))
    last = STEPS[2]["metrics"]
    assert drawn.told(f"; ECE: {last['ece']:.2%}; AdaECE: {last['ada_ece']:.2%}") == 2
    assert len(drawn.marks("line")) == 2
    assert len(Drawn(charts.run_nll(STEPS)).marks("line")) == 1


def test_a_monitor_has_the_same_charts_without_gammas() -> None:
    steps = history(5, has_gammas=False)
    made = charts.run_charts(steps)
    assert list(made) == ["gaps", "errors", "nll", "accuracy"]
    assert len(Drawn(made["gaps"]).marks("line")) == 15
    assert Drawn(made["gaps"]).told("mark: ") == 0


def test_steps_without_rows_or_nll_leave_a_gap() -> None:
    steps = history(3)
    nothing = dict.fromkeys(steps[1]["metrics"], None) | {"rows": 0}
    steps[1] |= {"metrics": nothing, "bins": None}
    steps[2]["metrics"]["nll"] = None
    assert Drawn(charts.run_gaps(steps)).told("bin: ") == 2 * 15
    assert Drawn(charts.run_gammas(steps)).told("bin: ") == 2 * 15
    assert Drawn(charts.run_errors(steps)).told("ECE: ") == 2 * 2
    assert Drawn(charts.run_nll(steps)).told("NLL: ") == 1


@pytest.mark.parametrize("steps", [history(1), []], ids=["one", "none"])
def test_runs_that_have_just_begun_are_drawn(steps: list[dict[str, Any]]) -> None:
    for spec in charts.run_charts(steps).values():
        assert Drawn(spec).words


def test_long_runs_of_many_bins_are_thinned_and_keep_their_last_step() -> None:
    one = history(1, bins=200)[0]
    steps = [{**one, "step": number} for number in range(1, 302)]
    drawn = Drawn(charts.run_gammas(steps))
    assert len(drawn.marks("line")) <= MAX_BINS
    assert MAX_POINTS / 2 < drawn.told("gamma: ") <= MAX_POINTS + MAX_BINS
    assert drawn.told("step: 301; ") > 0


def test_the_chart_does_not_depend_on_the_steps_it_is_given() -> None:
    empty, full = charts.run_charts([]), charts.run_charts(STEPS)
    for name, spec in full.items():
        assert {**spec, "data": None} == {**empty[name], "data": None}
        assert spec["data"] == {"name": "steps", "values": STEPS}
        text = json.dumps(empty[name]).replace(SCHEMA, "")
        assert "http" not in text
