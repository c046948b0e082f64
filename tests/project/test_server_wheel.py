"""`pip install calibrd-server` installs the service and adds its commands to `calibrd`."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest
from helpers.live_service import NPZ, ROOT, Running, files_below, npz, running, sample
from helpers.wheels import built, installed_with_links, outside, pip, run
from packaging.requirements import Requirement

VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
BROWSER = {"Accept": "text/html"}
TOGETHER = """
import json, calibrd, importlib.metadata as metadata
print(json.dumps([calibrd.__version__, metadata.version("calibrd-server")]))
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return built(tmp_path_factory.mktemp("wheels"), ".", "./distributions/server")


@pytest.fixture(scope="module")
def calibrd(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the `calibrd` command of a new environment with both wheels."""
    folder = tmp_path_factory.mktemp("fresh")
    return installed_with_links(folder, *wheels).with_name("calibrd")


@pytest.fixture(scope="module")
def served(calibrd: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run `calibrd serve` in a folder that contains an unrelated package called `service`."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "service").mkdir()
    (folder / "service/__init__.py").write_text("raise SystemExit('not ours')\n")
    with running(folder / "data", program=(str(calibrd),), cwd=folder, PYTHONPATH="") as started:
        yield started
        assert started.stop() == 0


def test_there_are_two_wheels_of_one_version(wheels: list[Path], calibrd: Path) -> None:
    assert [one.name for one in wheels] == [
        f"calibrd-{VERSION}-py3-none-any.whl",
        f"calibrd_server-{VERSION}-py3-none-any.whl",
    ]
    told = run(calibrd.with_name("python"), "-c", TOGETHER, **outside(calibrd.parent))
    assert json.loads(told) == [VERSION, VERSION]


def test_the_wheel_holds_every_file_of_the_service(wheels: list[Path]) -> None:
    names = zipfile.ZipFile(wheels[1]).namelist()
    found = {name for name in names if ".dist-info/" not in name}
    files = {str(one.relative_to(ROOT)) for one in files_below(ROOT / "service")}
    assert found == {name for name in files if "__pycache__" not in name}


def test_the_server_requires_its_own_sdk_and_not_torch(
    wheels: list[Path], calibrd: Path, tmp_path: Path
) -> None:
    archive = zipfile.ZipFile(wheels[1])
    (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
    told = Parser().parsestr(archive.read(name).decode())
    asked = {one.name: one for one in map(Requirement, told.get_all("Requires-Dist", []))}
    assert str(asked["calibrd"].specifier) == f"=={VERSION}"
    found = json.loads(
        run(*pip(calibrd.with_name("python")), "list", "--format=json", **outside(tmp_path))
    )
    names = {one["name"] for one in found}
    assert {"calibrd", "calibrd-server", "fastapi", "onnxruntime"} <= names
    assert "torch" not in names


def test_serve_shows_pages_and_runs_fits(served: Running) -> None:
    with served.client() as client:
        assert client.get("/healthz").status_code == 200
        assert "<h1" in client.get("/", headers=BROWSER).raise_for_status().text
        style = client.get("/static/app.css").raise_for_status()
        assert style.content == (ROOT / "service/web/static/app.css").read_bytes()
        assert client.get("/openapi.json").json()["info"]["version"] == VERSION
        done = client.post(
            "/v1/calibrators/wheel/fits?method=temperature",
            content=npz(*sample()),
            headers={**NPZ, "Prefer": "wait=60"},
        )
        assert done.json()["status"] == "succeeded", served.log.read_text()
        assert client.get("/v1/calibrators/wheel/versions/1/onnx").status_code == 200
        report = client.get("/v1/calibrators/wheel/versions/1/report.html")
        assert "<svg" in report.raise_for_status().text


def test_the_greeting_can_be_pasted_anywhere(
    served: Running, calibrd: Path, tmp_path: Path
) -> None:
    code = textwrap.dedent(served.greeting.partition("in Python:\n")[2])
    told = run(calibrd.with_name("python"), "-c", code, **outside(tmp_path))
    assert told == "fashion@1 improved\n"


def test_the_commands_work_on_stored_data(served: Running, calibrd: Path, tmp_path: Path) -> None:
    def command(*words: object) -> str:
        return run(calibrd, *words, "--data-dir", served.data_dir, **outside(tmp_path))

    assert command("migrate") == "the database is up to date\n"
    assert json.loads(command("doctor", "--json").splitlines()[-1])["findings"] == 0
    assert re.fullmatch(r"cal_\w+\n", command("keys", "create", "--scopes", "admin"))
    assert "backed up 2 versions" in command("backup", tmp_path / "all.tar")


def test_mistakes_have_the_exit_code_of_the_server(calibrd: Path, tmp_path: Path) -> None:
    words = [str(calibrd), "keys", "dance"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, **outside(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: calibrd keys ")
