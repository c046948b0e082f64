"""The gate makes the right decision if the truth is known, and explains it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.faulty_http_proxy import faulty_line
from helpers.live_service import Running

import calibrd
from calibrators import archive
from calibrators.methods.temperature import TemperatureMap
from calibrators.numerics.softmax import softmax
from calibrators.report.report import evaluate
from calibrd.cli.arguments import run
from calibrd.cli.gate import rows_needed


def drawn(rows: int, temperature: float, seed: int = 0) -> dict[str, Any]:
    """Return logits, and labels drawn from softmax(logits / temperature)."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(rows, 4)) * 2
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    return {"logits": (temperature * true).astype(np.float32), "labels": labels}


@pytest.fixture
def gated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return the exit code and the text of a gate with a map of temperature 2."""
    fitted = tmp_path / "two.calibrd"
    fitted.write_bytes(archive.dump(TemperatureMap(k=4, temperature=2.0)))
    path = tmp_path / "val.npz"

    def go(arrays: dict[str, Any], limit: float, *more: object) -> tuple[int, str]:
        np.savez(path, **arrays)
        words = ["gate", path, "--map", fitted, "--max-calibration-error", limit, *more]
        return run([str(word) for word in words]), capsys.readouterr().out

    return go


def test_calibrated_passes_overconfident_fails(gated: Any) -> None:
    code, words = gated(drawn(20_000, temperature=2.0), 0.03)
    assert code == 0
    assert words.startswith("PASS: ")
    assert "20,000 rows" in words
    assert "the limit is 3.00 %: pass" in words
    assert "The whole interval of the calibration error is within the limit" in words
    code, words = gated(drawn(20_000, temperature=6.0), 0.03)
    assert code == 1
    assert words.startswith("FAIL: ")
    assert "Fit on similar rows" in words
    assert len(words.splitlines()) == 1


def test_undecidable_steps_stay_undecided(gated: Any) -> None:
    code, words = gated(drawn(400, temperature=2.0), 0.02)
    assert code == 2
    assert words.startswith("INSUFFICIENT DATA: ")
    assert "would be enough" in words
    # clearly overconfident or clearly within the limit: 99 rows are still too few
    for temperature, limit in ((20.0, 0.01), (2.0, 0.9)):
        code, words = gated(drawn(99, temperature), limit)
        assert code == 2
        assert "needs at least 100 rows" in words


def test_the_estimated_number_of_rows_is_enough() -> None:
    def report(rows: int) -> Any:
        given = drawn(rows, temperature=1.0, seed=1)
        p = TemperatureMap(k=4, temperature=1.0).apply(given["logits"])
        return evaluate(p, given["labels"])

    few = report(500)
    assert few.gate(0.05) == "insufficient_data"
    needed = rows_needed(few, 0.05)
    assert needed is not None
    assert 500 < needed < 50_000
    assert report(2 * needed).gate(0.05) == "pass"


def test_the_ece_itself_is_limited_by_its_own_interval(gated: Any) -> None:
    rows = drawn(20_000, temperature=2.0)
    given = TemperatureMap(k=4, temperature=2.0).apply(rows["logits"])
    report = evaluate(given, rows["labels"])
    code, out = gated(rows, 0.5, "--max-ece", 0.03, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["limits"]["ece"]["gate"] == "pass"
    assert found["limits"]["ece"]["value"] == pytest.approx(report.metrics["ece"])
    assert found["limits"]["ece"]["high"] == pytest.approx(report.gate_interval("ece").high)
    assert found["limits"]["calibration_error"]["limit"] == 0.5


def test_with_both_limits_both_must_pass(gated: Any) -> None:
    code, words = gated(drawn(20_000, temperature=2.0), 0.03, "--max-ece", 0.001)
    assert code != 0
    assert "the limit is 3.00 %: pass" in words
    assert "The ECE (15 equal-width bins) is" in words
    assert "the limit is 0.10 %" in words
    code, out = gated(drawn(20_000, temperature=6.0), 0.9, "--max-ece", 0.03, "--json")
    assert (code, json.loads(out)["decided_by"]) == (1, "ece")


def test_a_gate_without_a_limit_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["gate", str(tmp_path / "val.npz"), "--map", "m@1"]) == 3
    assert "--max-calibration-error LIMIT, --max-ece LIMIT, or both" in capsys.readouterr().err


def test_json_and_markdown_agree(gated: Any, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    code, out = gated(drawn(5000, 6.0), 0.03, "--json", "--markdown", summary)
    document = json.loads(out)
    assert code == document["exit_code"] == 1
    assert document["gate"] == "fail"
    assert document["rows"] == 5000
    error = document["calibration_error"]
    assert 0.03 < error["low"] < error["value"] < error["high"]
    text = summary.read_text()
    assert text.startswith("before\n### ❌ Calibration gate: fail\n")
    assert document["paragraph"].removeprefix("FAIL: ") in text


def test_other_rows_than_the_map_takes_are_no_verdict(gated: Any) -> None:
    given = drawn(500, 2.0)
    code, _ = gated({**given, "logits": given["logits"][:, :3], "labels": given["labels"] % 3}, 0.1)
    assert code == 3
    p = np.full((500, 4), 0.25)
    assert gated({"probabilities": p, "labels": given["labels"]}, 0.1)[0] == 3


def test_a_map_that_is_not_confirmed_is_applied_but_no_verdict(
    service: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "val.npz", tmp_path / "out.npy"
    np.savez(path, **drawn(5000, 2.0))
    with calibrd.Client(service.url) as client:
        version = client.register("gated", TemperatureMap(k=4, temperature=2.0))
        client.promote("gated", version, force=True, reason="it is the truth")
    with faulty_line(service.url) as line:
        at = ["--url", line.url, "--retry-seconds", "0", "--map", "gated@production"]
        gate = ["gate", str(path), "--max-calibration-error", "0.1", *at]
        assert run(gate) == 0
        assert "gated@production (version 1)" in capsys.readouterr().out
    assert run(["apply", str(path), str(out), *at]) == 0
    assert "warning: gated@production: keeping version 1" in capsys.readouterr().err
    assert len(np.load(out)) == 5000
    assert run(gate) == 3
    assert "cannot confirm which version gated@production points at now" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["same file", "other order", "float64", "parquet"])
def test_the_rows_of_the_fit_are_refused(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = drawn(600, temperature=2.0)
    fitted, path = tmp_path / "map.calibrd", tmp_path / "rows.npz"
    np.savez(path, **rows)
    fit = ["fit", str(path), "--method", "temperature", "--out", str(fitted)]
    assert run(fit) == 0
    if how == "other order":
        order = np.random.default_rng(0).permutation(600)
        np.savez(path, **{name: values[order] for name, values in rows.items()})
    elif how == "float64":
        np.savez(path, logits=rows["logits"].astype(np.float64), labels=rows["labels"])
    elif how == "parquet":
        path = tmp_path / "rows.parquet"
        import pandas

        columns = {f"c{place}": rows["logits"][:, place].astype(float) for place in range(4)}
        pandas.DataFrame({**columns, "labels": rows["labels"]}).to_parquet(path)
    capsys.readouterr()
    gate = ["gate", str(path), "--map", str(fitted), "--max-calibration-error", "0.9"]
    gate += ["--columns", "c0,c1,c2,c3"] if how == "parquet" else []
    assert run(gate) == 3
    found = capsys.readouterr()
    assert found.out == ""
    assert f"{path} contains the rows that {fitted} was fitted on" in found.err
    assert "hint: use labelled rows that the map was not fitted on" in found.err
    np.savez(tmp_path / "fresh.npz", **drawn(600, temperature=2.0, seed=1))
    gate[1] = str(tmp_path / "fresh.npz")
    gate = gate[:6]
    assert run(gate) == 0


def test_a_version_of_the_service_is_not_gated_on_its_own_rows(
    service: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = drawn(600, temperature=2.0)
    path = tmp_path / "rows.npz"
    np.savez(path, **rows)
    with calibrd.Client(service.url) as client:
        version = client.fit("own-rows", rows["logits"], rows["labels"], method="temperature")
    gate = ["gate", str(path), "--url", service.url, "--max-calibration-error", "0.9", "--json"]
    assert run([*gate, "--map", version.reference]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "fitted_rows"
    assert "own-rows@" in error["message"]


def test_a_map_that_learns_nothing_may_be_gated_on_any_rows(tmp_path: Path) -> None:
    fitted, path = tmp_path / "raw.calibrd", tmp_path / "rows.npz"
    np.savez(path, **drawn(600, temperature=1.0))
    assert run(["fit", str(path), "--method", "identity", "--out", str(fitted)]) == 0
    assert run(["gate", str(path), "--map", str(fitted), "--max-calibration-error", "0.9"]) == 0


def test_probabilities_named_logits_are_refused(gated: Any) -> None:
    rows = drawn(2000, temperature=2.0)
    p = softmax(rows["logits"])
    code, out = gated({**rows, "logits": p}, 0.03, "--json")
    found = json.loads(out)["error"]
    assert (code, found["code"]) == (3, "looks_like_probabilities")
    assert "name the npz array 'probabilities'" in found["hint"]
