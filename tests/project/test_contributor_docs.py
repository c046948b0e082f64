"""The contributor documentation is correct: files and links exist, and journeys match the code."""

from __future__ import annotations

import ast
import io
import re
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml
from helpers.live_service import NPZ, ROOT, Local, in_process, npz, sample, wait_until
from helpers.registration import temperature_registration
from sqlalchemy import func, select

from calibrators.methods.temperature import TemperatureMap
from calibrators.metrics.catalogue import all_metrics
from calibrd.api.references import Reference
from calibrd.maps.cache import LoadedMap
from calibrd.maps.local_map import LocalMap
from service.fits.service import CPU
from service.storage.run_tables import run_steps
from service.worker.housekeeping import WorkerPace
from service.worker.queue_worker import QueueWorker

ARCHITECTURE = "docs/architecture.md"
DOCUMENTS = (
    ARCHITECTURE,
    "docs/glossary.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    ".github/pull_request_template.md",
)
TOP_FOLDERS = r"(?:calibrators|calibrd|service|tests|docs|benchmarks|studies|examples|\.ci)"
CONFIGURATION = (
    ".pre-commit-config.yaml",
    ".github/workflows/ci.yml",
    ".github/ISSUE_TEMPLATE/bug.yml",
    ".github/ISSUE_TEMPLATE/feature.yml",
    "CITATION.cff",
)
# middleware that is only used for predict calls
SHORTCUT = "service/serving/predict/shortcut.py"
PRODUCT = ("calibrators/", "calibrd/", "service/")
# where the journey of a fit continues in a worker
WORKER = "service/worker/queue_worker.py"
every_document = pytest.mark.parametrize("document", DOCUMENTS)


class Journey(NamedTuple):
    """The files that a call passes through, and the maximum number of files."""

    limit: int
    files: list[str]


def text_of(document: str) -> str:
    return (ROOT / document).read_text()


def without_code(document: str) -> str:
    return re.sub(r"^```.*?^```$", "", text_of(document), flags=re.M | re.S)


def paths_in(document: str) -> set[str]:
    """Return the paths that a document names, except paths with a placeholder."""
    named = re.findall(r"`([^`\n]+)`", without_code(document))
    return {one for one in named if re.fullmatch(rf"{TOP_FOLDERS}/[\w./-]*", one)}


def anchors_of(document: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", without_code(document), re.M)
    return {re.sub(r"[^\w -]", "", one).strip().lower().replace(" ", "-") for one in titles}


def journeys() -> dict[str, Journey]:
    found = {}
    for section in re.split(r"^#{2,3} ", text_of(ARCHITECTURE), flags=re.M):
        title, _, text = section.partition("\n")
        if limit := re.match(r"\s*At most (\d+) files\.", text):
            lines = re.findall(r"^(\d+)\. `([^`]+)`: ", text, re.M)
            assert [int(number) for number, _ in lines] == list(range(1, len(lines) + 1)), title
            found[title] = Journey(int(limit[1]), [path for _, path in lines])
    return found


JOURNEYS = journeys()


@every_document
def test_files_that_are_named_exist(document: str) -> None:
    missing = {one for one in paths_in(document) if not (ROOT / one).exists()}
    assert not missing
    folders = {one for one in paths_in(document) if (ROOT / one).is_dir()}
    assert all(one.endswith("/") for one in folders)


@every_document
def test_links_resolve(document: str) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", without_code(document)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = ((ROOT / document).parent / path).resolve() if path else ROOT / document
        assert target.exists(), link
        if anchor:
            assert anchor in anchors_of(str(target.relative_to(ROOT))), link


def test_constants_that_contributors_extend_exist() -> None:
    text = " ".join(text_of("CONTRIBUTING.md").split())
    said = [
        (path, name)
        for name, path in re.findall(r"`([A-Z_]{4,})` (?:in|of) `([\w./-]+\.py)`", text)
    ]
    assert len(said) >= 8
    for path, name in said:
        stored = (
            node.id
            for node in ast.walk(ast.parse(text_of(path)))
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        assert name in stored, (path, name)


def test_every_package_is_in_the_architecture_page() -> None:
    named = paths_in(ARCHITECTURE)
    for package in ("calibrators", "calibrd", "service"):
        rooms = {f"{package}/{one.parent.name}/" for one in ROOT.glob(f"{package}/*/__init__.py")}
        assert rooms <= named, rooms - named


def test_there_are_four_call_paths() -> None:
    assert list(JOURNEYS) == ["Upload and fit", "Predict", "Local apply", "AdaFocal step"]


@pytest.mark.parametrize("title", JOURNEYS)
def test_a_call_path_is_within_its_limit(title: str) -> None:
    journey = JOURNEYS[title]
    assert 0 < len(journey.files) <= journey.limit
    assert len(set(journey.files)) == len(journey.files)
    assert all((ROOT / one).is_file() for one in journey.files)


class Trace:
    """Records the files of the product in which functions are called while it is active."""

    def __init__(self) -> None:
        self.is_on = False
        self.files: dict[str, None] = {}

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self.is_on and event == "call":
            path = frame.f_code.co_filename
            if path.startswith(f"{ROOT}/"):
                self.files.setdefault(path.removeprefix(f"{ROOT}/"))


@contextmanager
def traced() -> Iterator[Trace]:
    """Trace this thread and all threads started within the block."""
    made, before = Trace(), sys.getprofile()
    threading.setprofile(made)
    sys.setprofile(made)
    try:
        yield made
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def shared() -> tuple[str, ...]:
    """Return the files that the lists of journeys leave out."""
    text = text_of(ARCHITECTURE).split("## Call paths")[1].split("A request enters")[0]
    return tuple(re.findall(r"`([\w./]+/[\w./]*)`", text))


def is_own(path: str) -> bool:
    return not path.startswith(shared()) and not path.endswith("/schemas.py")


def test_a_local_apply_passes_through_the_files_listed() -> None:
    map = TemperatureMap(k=3, temperature=1.5)
    loaded = LoadedMap(1, "", None, datetime.now(UTC), map)
    local = LocalMap(loaded, Reference.of("fashion@production"))
    with traced() as trace:
        trace.is_on = True
        local.apply(np.eye(3))
        trace.is_on = False
    own = [one for one in trace.files if one.startswith(PRODUCT) and is_own(one)]
    assert own == JOURNEYS["Local apply"].files


def test_a_prediction_passes_through_the_files_listed(tmp_path: Path) -> None:
    body = io.BytesIO()
    np.save(body, np.eye(3, dtype=np.float32))
    with traced() as trace, in_process(tmp_path, refresh_seconds=60) as client:
        answer = client.post("/v1/calibrators/fashion/versions", json=temperature_registration(2.0))
        assert answer.status_code == 201

        def predict() -> None:
            headers = {"Content-Type": "application/x-npy"}
            url = "/v1/calibrators/fashion@1/predict"
            assert client.post(url, content=body.getvalue(), headers=headers).status_code == 200

        predict()
        trace.is_on = True
        predict()
        trace.is_on = False
    limits = "service/datasets/formats/dataset_files.py"  # which declares the largest body
    entered = [one for one in trace.files if one.startswith(PRODUCT) and is_own(one)]
    own = [one for one in entered if one != limits]
    assert own == JOURNEYS["Predict"].files


def test_an_upload_with_a_fit_passes_through_the_files_listed(tmp_path: Path) -> None:
    """The journey ends at the queue, because workers run in other processes."""
    listed = JOURNEYS["Upload and fit"].files[: JOURNEYS["Upload and fit"].files.index(WORKER)]
    content = npz(*sample(rows=300, classes=4))
    url = "/v1/calibrators/fashion/fits?method=temperature"
    with traced() as trace, in_process(tmp_path, refresh_seconds=60) as client:
        trace.is_on = True
        answer = client.post(url, content=content, headers={**NPZ, "Prefer": "wait=1"})
        trace.is_on = False
    assert answer.status_code == 202
    assert set(listed) <= set(trace.files)
    own = {one for one in trace.files if one.startswith("service/") and is_own(one)}
    assert own - {SHORTCUT} <= set(listed)


def test_a_fit_in_a_worker_passes_through_the_files_listed(tmp_path: Path) -> None:
    """The journey starts with the claim; files used before that are listed there."""
    listed = JOURNEYS["Upload and fit"].files
    all_metrics()  # the folder is scanned once in a process
    url = "/v1/calibrators/fashion/fits?method=temperature"
    with traced() as trace, in_process(tmp_path, refresh_seconds=60) as client:
        fit = client.post(url, content=npz(*sample(rows=300, classes=4)), headers=NPZ).json()["id"]
        settings = client.app.state.parts.settings
        worker = QueueWorker(settings, [CPU], "cpu", WorkerPace(), threading.Event())
        worker._housekeeping.beat()
        trace.is_on = True
        worker.work_once()
        trace.is_on = False
        assert client.get(f"/v1/fits/{fit}").json()["status"] == "succeeded"
    own = [one for one in trace.files if one.startswith(PRODUCT) and is_own(one)]
    figures = ("calibrators/metrics/", "calibrators/report/")
    counted = [one for one in own if one in listed or not one.startswith(figures)]
    assert set(counted) <= set(listed)
    assert set(listed[listed.index(WORKER) :]) <= set(own)
    said = re.search(r"(\d+) more files in `(.+?)` and (\d+) in `(.+?)`", text_of(ARCHITECTURE))
    rest = [one for one in own if one not in listed]
    assert said is not None
    for number, folder in (said.group(1, 2), said.group(3, 4)):
        assert len([one for one in rest if one.startswith(folder)]) == int(number)


def test_a_step_of_adafocal_passes_through_the_files_listed(tmp_path: Path) -> None:
    from calibrd.training import AdaFocal

    logits, labels = (torch.as_tensor(one) for one in sample(rows=200))

    def step() -> None:
        adafocal.observe(logits, labels)
        number = adafocal.loss.state.step + 1
        adafocal.step()
        wait_until(lambda: steps_of(client) == number)

    with (
        traced() as trace,
        in_process(tmp_path / "data", refresh_seconds=60) as client,
        AdaFocal(str(client.base_url), run="training", folder=tmp_path / "outbox") as adafocal,
    ):
        step()
        trace.is_on = True
        step()
        trace.is_on = False
    own = {one for one in trace.files if one.startswith(PRODUCT) and is_own(one)}
    assert own - {SHORTCUT} == set(JOURNEYS["AdaFocal step"].files)


def steps_of(client: Local) -> int:
    with client.app.state.parts.database.read() as store:
        return int(store.session.execute(select(func.count()).select_from(run_steps)).scalar_one())


@pytest.mark.parametrize("name", CONFIGURATION)
def test_configuration_can_be_read(name: str) -> None:
    assert yaml.safe_load(text_of(name))


def test_ci_runs_what_contributors_run() -> None:
    jobs = yaml.safe_load(text_of(".github/workflows/ci.yml"))["jobs"]
    (steps,) = (job["steps"] for job in jobs.values())
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
    assert {step["with"]["python-version"] for step in steps if "with" in step} == {"3.11"}


def test_hooks_are_local_and_run_the_tools_of_make_check() -> None:
    repos = yaml.safe_load(text_of(".pre-commit-config.yaml"))["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    entries = [hook["entry"] for hook in repos[0]["hooks"]]
    checks = text_of("Makefile").split("\ncheck:")[1].split("\n\n")[0]
    for entry in entries:
        assert f"$(BIN)/{entry.removeprefix('.venv/bin/').split(' --')[0]}" in checks


def test_the_citation_names_this_version() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    cited = yaml.safe_load(text_of("CITATION.cff"))
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
