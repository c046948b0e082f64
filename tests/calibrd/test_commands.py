"""The command ``calibrd`` against the real service, and its errors."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.faulty_http_proxy import FaultyLine, Say
from helpers.live_service import Running, sample, wait_until

from calibrators import CalibrationWarning, archive
from calibrators.adafocal import BinStatistics
from calibrators.error_codes import ERROR_CODES
from calibrators.methods.temperature import TemperatureMap
from calibrd import Client
from calibrd.cli import server
from calibrd.cli.arguments import command_parser, run
from calibrd.io.dataset_files import read_map

LOGITS, LABELS = sample()


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def calibrd(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command in this process."""

    def go(*words: object) -> Done:
        code = run([str(word) for word in words])
        return Done(code, *capsys.readouterr())

    return go


@pytest.fixture(scope="module")
def val(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "val.npz"
    np.savez(path, logits=LOGITS, labels=LABELS)
    return path


@pytest.fixture
def at(service: Running, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CALIBRD_URL", service.url)
    return service.url


def test_from_fit_to_rollback(calibrd: Any, val: Path, at: str, tmp_path: Path) -> None:
    fitting = ("fit", val, "--name", "cli", "--method", "temperature")
    done = calibrd(*fitting, "--promote", "production", "--model", "cnn-7")
    assert done.code == 0, done.err
    assert "verdict: improved" in done.out
    assert "noise floor of the ECE" in done.out
    assert done.out.endswith("cli@1 (temperature) is on the service\ncli@production is version 1\n")
    assert f"600 rows to {at}" in done.err

    done = calibrd(*fitting, "--local", "--param", "objective=nll", "--seed", 3, "--json")
    made = done.document
    assert made["version"]["number"] == 2
    assert made["version"]["dataset_sha256"] is None  # no rows were sent
    assert made["report"]["verdict"] == "improved"
    assert made["alias"] is None

    promoting = ("promote", "cli", 2, "--reason", "newer")
    done = calibrd(*promoting)
    assert done.out.endswith("cli@production is version 2\n")
    assert "on 600 judged rows" in done.out
    for title in ("accuracy", "Brier score", "NLL", "ECE, equal-width bins", "AUROC"):
        assert title in done.out
    figures = calibrd(*promoting, "--json").document["figures"]
    # compared with the model: no rows were sent
    assert figures["metrics"]["nll"]["change"]["high"] < 0
    assert figures["against"] is None
    assert calibrd("rollback", "cli").out == "rolled cli@production back to version 1\n"
    moves = calibrd("history", "cli", "--json").document
    assert [(one["to_version"], one["rollback"]) for one in moves] == [
        (1, True),
        (2, False),
        (1, False),
    ]
    assert "newer" in calibrd("history", "cli").out
    assert [one["number"] for one in calibrd("versions", "cli", "--json").document] == [2, 1]
    assert "improved" in calibrd("versions", "cli").out
    named = {one["name"]: one for one in calibrd("list", "--json").document}
    assert named["cli"]["aliases"][0]["version"] == 1
    assert "production=1" in calibrd("list").out

    assert "verdict: improved" in calibrd("report", "cli@1").out
    page = tmp_path / "report.html"
    assert calibrd("report", "cli", "--out", page, "--json").document["file"] == str(page)
    assert "<svg" in page.read_text()

    np.save(tmp_path / "in.npy", LOGITS)
    out = tmp_path / "out.npy"
    done = calibrd("apply", tmp_path / "in.npy", out, "--map", "cli@production", "--model", "cnn-7")
    assert done.code == 0, done.err
    size = "600 rows of 5 probabilities"
    assert done.out == f"{out}: {size}, calibrated by cli@production (version 1)\n"
    assert np.load(out).sum(axis=1) == pytest.approx(1, abs=1e-5)
    refused = calibrd("apply", tmp_path / "in.npy", out, "--map", "cli@1", "--model", "other")
    assert (refused.code, refused.out) == (3, "")
    assert "'other'" in refused.err


def test_training_runs_are_listed(calibrd: Any, client: Client, at: str) -> None:
    session = client.open_run("cli-run", session="job-1")
    seen = BinStatistics.from_confidences([0.9, 0.8, 0.6], [True, False, True])
    assert session.state is not None
    state = session.state.update(seen)
    client.send_statistics("cli-run", 1, seen, session=session, state=state)
    told = calibrd("run", "cli-run")
    assert "job-1" in told.out
    assert f"{seen.summary().ece:.4f}" in told.out
    assert "not verified" not in told.out
    other = dataclasses.replace(state, step=2)
    client.send_statistics("cli-run", 2, seen, session=session, state=other)
    assert "not verified" in calibrd("run", "cli-run", "--session", "job-1").out
    (found,) = [one for one in calibrd("runs", "--json").document if one["name"] == "cli-run"]
    assert (found["step"], found["kind"]) == (2, "adafocal")
    assert "cli-run" in calibrd("runs").out
    assert "cli-run" not in calibrd("runs", "--archived").out


def test_fit_on_the_service_is_judged_as_requested(
    calibrd: Any, val: Path, at: str, tmp_path: Path
) -> None:
    asked = ("fit", val, "--name", "judged", "--method", "temperature", "--json")
    held = calibrd(*asked, "--held-out", 0.5).document
    assert held["report"]["n"] == 300
    np.savez(tmp_path / "test.npz", logits=LOGITS[:200] + 1e-3, labels=LABELS[:200])
    separate = calibrd(*asked, "--evaluation", tmp_path / "test.npz").document
    assert separate["report"]["judged_on"].startswith("a separate evaluation set")
    refused = calibrd(*asked, "--param", "nonsense=1")
    assert refused.code == 3
    assert "nonsense" in refused.document["error"]["message"]
    assert refused.document["error"]["request_id"]


def test_a_map_from_a_stale_cache_causes_a_note(
    calibrd: Any, client: Client, line: FaultyLine, val: Path, tmp_path: Path
) -> None:
    client.register("stale", TemperatureMap(k=5, temperature=3.0))
    client.promote("stale", 1, force=True, reason="a test")
    asked = ("apply", val, tmp_path / "out.npy", "--map", "stale", "--force", "-q", "--json")
    fine = calibrd(*asked, "--url", line.url).document["map"]
    line.before = lambda asked: Say(503)
    stale = calibrd(*asked, "--url", line.url, "--retry-seconds", 0).document["map"]
    assert fine["problem"] is None
    assert "503" in stale["problem"]
    assert stale["confirmed_at"] == fine["confirmed_at"]


def test_a_refused_promotion_names_the_created_version(calibrd: Any, val: Path, at: str) -> None:
    # 30 rows are too few for a verdict
    asked = ("fit", val, "--name", "same", "--method", "identity", "--held-out", 0.05)
    done = calibrd(*asked, "--promote", "production", "--json")
    assert done.code == 3
    told = done.document["error"]
    assert (told["code"], told["version"]) == ("needs_force", "same@1")
    assert told["message"].startswith("same@1 was created, but not promoted: ")
    assert told["request_id"]


def test_the_choice_of_auto_is_printed(calibrd: Any, val: Path, at: str, tmp_path: Path) -> None:
    fitting = ("fit", val, "--method", "auto", "--param", "budget=1e-9")
    fitting += ("--param", 'candidates=["spline"]')
    told = "auto chose additive: .*\nleft out spline: .*\n"
    for where in (("--name", "cli-auto"), ("--out", tmp_path / "auto.calibrd")):
        done = calibrd(*fitting, *where)
        assert done.code == 0, done.err
        assert re.search(told, done.out), done.out


def test_a_fallback_is_printed(calibrd: Any, at: str, tmp_path: Path) -> None:
    right = tmp_path / "right.npz"
    np.savez(right, logits=LOGITS, labels=LOGITS.argmax(axis=1))
    told = "vector fell back to temperature scaling: every prediction on the fit set is correct"
    for where in (("--name", "cli-right"), ("--out", tmp_path / "right.calibrd")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CalibrationWarning)
            done = calibrd("fit", right, "--method", "vector", *where)
        assert done.code == 0, done.err
        assert told in done.out, done.out


def test_fit_to_a_file_needs_no_service(calibrd: Any, val: Path, tmp_path: Path) -> None:
    target = tmp_path / "m.calibrd"
    asked = ("fit", val, "--method", "temperature", "--out", target)
    done = calibrd(*asked)
    assert done.code == 0, done.err
    fitted = read_map(target)
    assert isinstance(fitted, TemperatureMap)
    assert 2.5 < fitted.temperature < 3.5
    assert calibrd(*asked).code == 3
    assert calibrd(*asked, "--force", "--json").document["verdict"] == "improved"
    assert [path.name for path in tmp_path.iterdir()] == ["m.calibrd"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "a command is required"),
        ("bogus", "invalid choice: 'bogus'"),
        ("fit", "required: DATA"),
        ("fit VAL", "--name NAME"),
        ("fit VAL --name m --out f.calibrd", "--name NAME"),
        ("fit VAL --name m --evaluation VAL", "must not be the same file as DATA"),
        ("fit VAL --out f.bin", "must end in .calibrd"),
        ("fit VAL --out f.calibrd --method bogus", "no method 'bogus'"),
        ("fit VAL --out f.calibrd --method temperature --param steps", "NAME=VALUE"),
        ("fit VAL --out f.calibrd --method temperature --param steps=3", "steps"),
        ("fit VAL --name m --meth smart", "unrecognized arguments: --meth smart"),
        ("list --url ftp://here", "url must look like http://"),
        ("list --url http://127.0.0.1:9 --retry-seconds 0", "no response from http://127.0.0.1:9"),
        ("report Not/A/Name", "name@alias or name@number"),
        ("report m@1 --out report.pdf", "--out must end in .html"),
        ("apply in.npy out.npy --map missing.calibrd", "missing.calibrd: No such file"),
        ("apply in.npy out.npy --map VAL", "not a calibrd archive (bad magic bytes)"),
        ("gate missing.npz --map m --max-ece 0.1", "missing.npz: No such file"),
        ("gate TEXT --map m --max-ece 0.1", "is not an npz file"),
        ("gate VAL.txt --map m --max-ece 0.1", "must end in .npz, .parquet or .arrow"),
        ("gate NOLABELS --map m --max-ece 0.1", "or 'probabilities', but contains 'logits'"),
        ("gate PICKLED --map m --max-ece 0.1", "not pickled objects"),
        ("gate SHORT --map m --max-ece 0.1", "logits have 600 rows but labels have 599"),
        ("gate CUBE --map m --max-ece 0.1", "must have shape (n, k)"),
        ("fit SHORT --out f.calibrd --method temperature -q", "short.npz: logits have 600 rows"),
        ("fit SHORT --name m -q", "short.npz: logits have 600 rows"),
        ("fit VAL --name a/b", "a calibrator's name must be"),
        ("fit VAL --name m@3", "a calibrator's name must be"),
        ("fit VAL --name m --promote pro@duction", "got 'pro@duction'"),
        ("fit VAL --name m --promote 3", "not only digits"),
        ("fit VAL --name m --evaluation missing.npz -q", "missing.npz: No such file"),
        ("fit VAL --name m --evaluation SHORT -q", "short.npz: logits have 600 rows"),
        ("fit VAL --name m --evaluation NARROW -q", "narrow.npz contains logits of 3 classes, but"),
        ("fit VAL --out nodir/f.calibrd", "nodir/f.calibrd: the folder nodir does not exist"),
        ("apply VAL nodir/o.npy --map MAP -q", "nodir/o.npy: the folder nodir does not exist"),
        ("apply VAL FOLDER --map MAP -q", "folder.npy: is a folder"),
        ("history m --limit -5", "--limit: must be a positive integer, got '-5'"),
        (
            "list --retry-seconds nan",
            "--retry-seconds: must be a non-negative number of seconds, got 'nan'",
        ),
        ("gate VAL --map m --max-ece 3", "0.03 is three percentage points"),
        ("gate VAL --map m --max-ece nan", "0.03 is three percentage points"),
    ],
)
def test_errors_take_one_or_two_lines(
    calibrd: Any, val: Path, tmp_path: Path, words: str, said: str
) -> None:
    broken: dict[str, dict[str, Any]] = {
        "NOLABELS": {"logits": LOGITS},
        "PICKLED": {"logits": LOGITS, "labels": np.array([{}] * 600)},
        "SHORT": {"logits": LOGITS, "labels": LABELS[1:]},
        "NARROW": {"logits": LOGITS[:, :3], "labels": LABELS % 3},
        "CUBE": {"logits": LOGITS[..., None], "labels": LABELS},
    }
    paths = {name: tmp_path / f"{name.lower()}.npz" for name in (*broken, "TEXT")}
    for name, arrays in broken.items():
        if name in words:
            np.savez(paths[name], **arrays)
    paths["TEXT"].write_text("text")
    paths |= {"VAL": val, "MAP": tmp_path / "m.calibrd", "FOLDER": tmp_path / "folder.npy"}
    paths["MAP"].write_bytes(archive.dump(TemperatureMap(k=5, temperature=3.0)))
    paths["FOLDER"].mkdir()
    given = [str(paths.get(word, word)) for word in words.split()]
    done = calibrd(*given)
    assert (done.code, done.out) == (3, "")
    assert said in done.err
    assert done.err.startswith("error: ")
    assert len(done.err.splitlines()) <= 2
    assert done.err.count("hint: ") <= 1
    done = calibrd(*given, "--json")
    assert done.code == 3
    told = done.document["error"]
    assert {*told} == {"code", "message", "notes", "hint", "request_id", "version"}
    assert said in told["message"]
    assert done.err == ""


def test_notes_of_an_error_are_printed(calibrd: Any, line: FaultyLine) -> None:
    line.before = lambda asked: Say(503)
    asked = ("rollback", "m", "--url", line.url)
    assert "\nnote: the request may or may not have succeeded: " in calibrd(*asked).err
    (note,) = calibrd(*asked, "--json").document["error"]["notes"]
    assert note.startswith("the request may or may not have succeeded: ")


def test_hints_name_commands_and_flags(calibrd: Any, client: Client, at: str) -> None:
    client.register("unjudged", TemperatureMap(k=5, temperature=3.0))
    done = calibrd("promote", "unjudged", 1)
    assert "`calibrd promote NAME NUMBER --force --reason WHY` promotes it" in done.err
    hints = [row.command for row in ERROR_CODES.values() if row.command]
    assert hints
    parser = command_parser()
    verbs = next(one.choices for one in parser._actions if isinstance(one.choices, dict))
    flags = {flag for verb in verbs.values() for flag in verb._option_string_actions}
    for hint in hints:
        assert {*re.findall(r"(?<!\S)--[a-z-]+", hint)} <= flags
        assert {*re.findall(r"`calibrd (\w+)", hint)} <= {*verbs}
        assert "client." not in hint


def test_quiet_prints_only_the_result(calibrd: Any, val: Path, tmp_path: Path) -> None:
    asked = ("fit", val, "--method", "temperature", "--out", tmp_path / "m.calibrd", "--quiet")
    assert calibrd(*asked).err == ""


def test_warnings_are_notes(calibrd: Any, tmp_path: Path) -> None:
    path = tmp_path / "probabilities.npz"
    np.savez(path, logits=np.eye(3)[LABELS % 3] * 0.8 + 0.2 / 3, labels=LABELS % 3)
    done = calibrd("fit", path, "--method", "identity", "--out", tmp_path / "m.calibrd", "--json")
    assert done.code == 0
    assert "warning: every row of logits lies in [0, 1]" in done.err
    assert done.document["method"] == "identity"


def test_help_exists_for_every_command(calibrd: Any) -> None:
    assert calibrd("--help").code == 0
    actions = [one for one in command_parser()._actions if hasattr(one, "choices") and one.choices]
    for name in actions[0].choices or ():
        if name not in server.COMMANDS:
            done = calibrd(name, "--help")
            assert done.code == 0
            assert "CALIBRD_API_KEY" in done.out


def spawned(*words: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "calibrd", *map(str, words)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def test_ctrl_c_while_a_fit_runs(val: Path, tmp_path: Path) -> None:
    code = "import sys, numpy as np; rng = np.random.default_rng(0); n = 60_000; "
    code += (
        "np.savez(sys.argv[1], logits=rng.normal(size=(n, 10)), labels=rng.integers(10, size=n))"
    )
    path = tmp_path / "large.npz"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    target = tmp_path / "m.calibrd"
    running = spawned("fit", path, "--method", "smart", "--param", "steps=100000", "--out", target)
    assert running.stderr is not None
    assert "rows locally" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    wait_until(lambda: running.poll() is not None, 30)
    out, err = running.communicate()
    assert (running.returncode, out, err) == (130, "", "")
    assert not target.exists()


def test_a_closed_pipe_is_not_an_error(at: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "calibrd", "list"], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_unwritable_result_is_not_a_verdict(
    calibrd: Any, val: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = tmp_path / "m.calibrd"
    fitted.write_bytes(archive.dump(TemperatureMap(k=5, temperature=3.0)))
    gate = f"{sys.executable} -m calibrd gate {val} --map {fitted} --max-ece 0.3 --json"
    amiss = gate.replace(str(val), "missing.npz")
    lines = [
        (f"{gate} >/dev/full", "error: cannot write the result to stdout"),
        (f"{amiss} --traceback >/dev/full 2>&-", ""),
        (f"{amiss.removesuffix(' --json')} 2>/dev/full", ""),
    ]
    begun = [
        subprocess.Popen(line, shell=True, stdout=-1, stderr=-1, text=True)  # noqa: S602
        for line, _ in lines
    ]
    told = [running.communicate(timeout=100)[1] for running in begun]
    for running, err, (line, said) in zip(begun, told, lines, strict=True):
        assert running.returncode == 3, line
        assert err.startswith(said), line
        assert "Traceback" not in err
    monkeypatch.setattr(sys, "stdout", None)
    done = calibrd(*gate.split()[3:])
    assert (done.code, done.err) == (3, "error: cannot write the result to stdout: it is closed\n")
    monkeypatch.setattr(sys, "stderr", None)
    assert calibrd(*gate.split()[3:]).code == 3


def test_characters_that_the_encoding_lacks(
    val: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = tmp_path / "m.calibrd"
    fitted.write_bytes(archive.dump(TemperatureMap(k=5, temperature=3.0)))
    odd = tmp_path / "\xfc\udcff.npz"
    odd.write_bytes(val.read_bytes())
    asked = ["gate", str(odd), "--map", str(fitted), "--max-ece", "0.3"]
    page = tmp_path / "page.md"
    for more, said in ([], b"/\\xfc\\udcff.npz"), (["--json"], b"/\\u00fc\\udcff.npz"):
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
        assert run([*asked, *more, "--markdown", str(page)]) == 0
        assert said in raw.getvalue()
    assert "/\xfc\\udcff.npz" in page.read_text(encoding="utf-8")
