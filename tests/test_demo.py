"""The demonstration runs, tells the truth, and leaves a page."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from calibrators import all_methods

DEMO = Path(__file__).parent.parent / "examples" / "demo.py"


def test_the_demo_prints_every_method_and_writes_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new" / "demo.html"
    runpy.run_path(str(DEMO))["main"](["--out", str(target)])
    lines = capsys.readouterr().out.splitlines()
    cells = {line.split()[0]: line.split() for line in lines if line.strip()}
    for name in all_methods():
        assert cells[name][1:3] == ["6.54", "%"]
        assert cells[name][-1] in ("improved", "trade_off", "no_measurable_change")
    assert cells["identity"][-1] == "no_measurable_change"
    assert cells["auto"][-1] == "improved"
    assert float(cells["blurred"][3]) > 3
    assert str(target) in lines[-1]
    assert "<svg" in target.read_text(encoding="utf-8")
