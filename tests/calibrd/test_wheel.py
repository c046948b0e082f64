"""`pip install calibrd` in a new environment, with the wheel and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from helpers.live_service import ROOT, Running
from helpers.wheels import built, installed, outside, pip, run

import calibrd

PACKAGES = {
    "annotated-types",
    "anyio",
    "calibrd",
    "certifi",
    "h11",
    "httpcore",
    "httpx",
    "idna",
    "numpy",
    "platformdirs",
    "tqdm",
    "typing-extensions",
}
MAX_MEGABYTES = 120
MAX_WHEEL_BYTES = 700_000
MAX_IMPORT_SECONDS = 0.5
IMPORT = """
import json, sys, time
began = time.process_time()  # others use the cores as well
import calibrd
took = time.process_time() - began
heavy = ["torch", "fastapi", "pydantic", "scipy", "pandas", "sqlalchemy"]
print(json.dumps({"seconds": took, "heavy": [one for one in heavy if one in sys.modules]}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (made,) = built(tmp_path_factory.mktemp("wheel"), ".")
    return made


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of a virtual environment with the wheel and its dependencies."""
    return installed(tmp_path_factory.mktemp("fresh"), wheel)


def test_the_wheel_holds_the_sdk_and_the_maths_only(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        "calibrators",
        "calibrd",
    }
    assert {"calibrd/py.typed", "calibrators/py.typed"} <= {*names}
    assert wheel.stat().st_size < MAX_WHEEL_BYTES


def test_it_gains_little(python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(*pip(python), "list", "--format=json", **outside(tmp_path)))
    versions = {one["name"]: one["version"] for one in found}
    size = _bytes(next((python.parents[1] / "lib").glob("python*/site-packages")))
    answers = [json.loads(run(python, "-c", IMPORT, **outside(tmp_path))) for _ in range(5)]
    seconds = min(one["seconds"] for one in answers)
    with capsys.disabled():
        listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        sys.stdout.write(
            f"\nimport calibrd: {seconds:.2f} s; {size / 1e6:.0f} MB installed; {listed}\n"
        )
    assert {name.lower().replace("_", "-") for name in versions} == PACKAGES
    assert size < MAX_MEGABYTES * 1e6
    assert answers[0]["heavy"] == []
    assert seconds < MAX_IMPORT_SECONDS


def test_it_fits_registers_and_applies(python: Path, service: Running, tmp_path: Path) -> None:
    code = f"""
import calibrd, numpy as np
rng = np.random.default_rng(0)
truth = rng.normal(size=(600, 5)) * 2
labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
fitted, report = calibrd.fit_local(3 * truth, labels, method="temperature", progress=False)
client = calibrd.Client({service.url!r})
version = client.register("from-wheel", fitted, report)
client.promote("from-wheel", version)
local = client.load("from-wheel@production")
assert np.array_equal(local.apply(3 * truth), fitted.apply(3 * truth))
print(version.verdict, calibrd.__version__)
"""
    assert run(python, "-c", code, **outside(tmp_path)) == f"improved {calibrd.__version__}\n"


def readme_snippet() -> str:
    """Return the first Python snippet of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text.partition("```python\n")[2].partition("```")[0]


def test_the_first_snippet_of_the_readme_runs(
    python: Path, service: Running, tmp_path: Path
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "first.py").write_text(readme_snippet())
    where = outside(tmp_path)
    where["env"] |= {"CALIBRD_URL": service.url}
    printed = run(python, "first.py", **where)
    assert printed.startswith("improved\n")
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count("<svg") == 6
    calibrd_command = python.with_name("calibrd")
    for name in ("again.html", "chart.svg", "report.json"):
        told = run(calibrd_command, "report", "fashion@1", "--out", name, **where)
        assert told == f"wrote the report of fashion@1 to {name}\n"
        assert (tmp_path / name).stat().st_size > 10_000
    failed = subprocess.run(
        [calibrd_command, "report", "fashion@1", "--out", "chart.png"],
        capture_output=True,
        text=True,
        timeout=60,
        **where,
    )
    assert failed.returncode == 3
    assert "drawing PNG needs vl-convert: pip install 'calibrd[charts]'" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_without_the_server_the_hints_name_the_package(python: Path, tmp_path: Path) -> None:
    failed = subprocess.run(
        [python.with_name("calibrd"), "serve", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        **outside(tmp_path),
    )
    assert (failed.returncode, failed.stdout) == (3, "")
    assert "hint: install the calibrd-server wheel" in failed.stderr


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("calibrd.sklearn.CalibratedModel", "pip install 'calibrd[sklearn]'"),
        ("calibrd.torch.CalibratedModule", "pip install 'calibrd[train]'"),
        ("calibrd.training.AdaFocal", "pip install 'calibrd[train]'"),
        ("calibrd.training.make_loss", "pip install 'calibrd[train]'"),
        ("calibrd.training.Monitor", None),
        ("calibrd.errors.NotCalibrd", None),
        ("calibrd.batch.apply_file", None),
    ],
)
def test_a_missing_extra_is_named(
    python: Path, tmp_path: Path, expression: str, told: str | None
) -> None:
    code = f"""
import calibrd
try:
    print({expression}.__name__)
except ImportError as error:
    print(error)
"""
    printed = run(python, "-c", code, **outside(tmp_path)).strip()
    if told is None:
        assert printed == expression.rpartition(".")[2]
    else:
        assert printed.endswith(told)


def test_all_of_auto_and_smart_fit_without_torch(python: Path, tmp_path: Path) -> None:
    code = """
import calibrd, numpy as np, json
rng = np.random.default_rng(0)
truth = rng.normal(size=(600, 5)) * 2
labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)
fitted, report = calibrd.fit_local(3 * truth, labels, progress=False)
print(json.dumps([str(report.verdict), fitted.fit_info["left_out"], fitted.method]))
print(calibrd.fit_local(3 * truth, labels, method="smart", progress=False).map.method)
"""
    first, second = run(python, "-c", code, **outside(tmp_path)).splitlines()
    assert json.loads(first) == ["improved", [], "additive"]
    assert second == "smart"


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
