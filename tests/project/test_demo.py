"""The demo runs, prints the correct figures, and writes a page."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from calibrators import all_methods
from calibrd.cli import demo
from calibrd.cli.arguments import run

LEFT_OUT = {name for name, one in all_methods().items() if one.needs_segments or one.needs_features}
FEW = ("auto", "identity", "segmented", "smart", "temperature")


def test_the_demo_prints_every_method_and_writes_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new" / "demo.html"
    assert run(["demo", "--out", str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = {line.split()[0]: line.split() for line in lines if line.strip()}
    assert not LEFT_OUT & set(cells)  # the sample has no segments and no features
    shown = [line for line in lines if line.split()[:1] and line.split()[0] in all_methods()]
    assert len({re.search(r"[a-z_]+$", line).start() for line in shown}) == 1  # in this order
    for name in (name for name, one in all_methods().items() if name not in LEFT_OUT):
        assert cells[name][1:3] == ["6.79", "%"]
        assert cells[name][-1] in ("improved", "trade_off", "no_measurable_change")
    assert cells["identity"][-1] == "no_measurable_change"
    assert cells["auto"][-1] == "improved"
    assert str(target) in lines[-1]
    assert "<svg" in target.read_text(encoding="utf-8")


def test_without_torch_and_charts_every_method_is_fitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {name: all_methods()[name] for name in FEW}
    monkeypatch.setattr(demo, "all_methods", lambda: few)  # the others need neither
    # None stands for a module that cannot be imported
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    target = tmp_path / "demo.html"
    assert run(["demo", "--out", str(target)]) == 0
    printed = capsys.readouterr().out
    assert "Left out, because this sample has no segments or features: segmented" in printed
    assert target.read_text(encoding="utf-8").count("<svg") == 5
    assert run(["demo", "--json", "--out", str(target)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["left_out"] == ["segmented"]
    assert document["page"] == str(target)
    judged = {one["method"]: one["verdict"] for one in document["methods"]}
    assert judged == {
        "identity": "no_measurable_change",
        "temperature": "improved",
        "smart": "improved",
        "auto": "improved",
    }
