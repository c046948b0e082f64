"""Execution of a fit in a single process: versions, failures, fencing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.backends import Backend
from helpers.fit_fixtures import FINAL, Hooks, Place, begin
from helpers.raw_blobs import keys
from structlog.testing import capture_logs

from calibrators import Report, archive
from service.datasets.service import forget_spent_datasets
from service.errors import BlobMissing
from service.fits.execution import Ending, FitAttempt, Stop, conclude, run
from service.storage.blob_keys import dataset_key, map_key, onnx_key
from service.storage.blobs import PendingBlobs
from service.storage.records import Fit, FitStatus
from service.storage.repository import JsonText

pytestmark = pytest.mark.both_backends


@pytest.fixture(scope="module")
def place(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(**backend.settings(tmp_path_factory.mktemp("fitting")))
    yield made
    made.close()


def started(place: Place, fit: Fit) -> FitAttempt:
    job = begin(place.database, fit.id, worker="w1", device="cpu")
    assert job is not None
    return job


def ended(place: Place, fit: Fit, hooks: Hooks | None = None, **limits: float) -> Ending | None:
    limit = {"time_limit": 60.0, **limits}
    return run(started(place, fit), place.blobs, hooks or Hooks(), device="cpu", **limit)


def error_of(ending: Ending | None) -> dict[str, str]:
    assert ending is not None
    assert ending.status is FitStatus.FAILED
    assert not ending.versions
    assert ending.error is not None
    return ending.error


def test_versions_hold_all_metadata(place: Place) -> None:
    data = place.dataset()
    notes = {"model": "sha256:abc", "tags": {"run": "7"}, "description": "first", "seed": 3}
    fit = place.start_fit(data, ("temperature", {}), ("smart", {"steps": 20}), **notes)
    job, hooks = started(place, fit), Hooks()
    ending = run(job, place.blobs, hooks, device="cpu", time_limit=60)
    assert ending is not None
    done = conclude(place.database, job.fit, ending)
    assert done is not None
    assert (done.status, done.attempt, done.error) == (FitStatus.SUCCEEDED, 1, None)
    assert done.versions == place.versions_of(fit)
    assert [one["method"] for one in hooks.told[:: len(hooks.told) - 1]] == ["temperature", "smart"]
    assert hooks.told[-1] == {
        "method": "smart",
        "methods_done": 1,
        "methods": 2,
        "step": 1000,
        "total": 1000,
        "loss": pytest.approx(0, abs=1),
    }
    with place.database.read() as store:
        version = store.calibrators.version(place.calibrator.id, done.versions[1])
        report = store.calibrators.report(place.calibrator.id, done.versions[1])
    assert version is not None
    assert report is not None
    assert (version.method, version.seed, version.kind, version.classes) == (
        "smart",
        3,
        "logits",
        5,
    )
    assert version.params["steps"] == 20
    assert version.params["seed"] == 3
    assert (version.model, version.tags, version.description) == (
        "sha256:abc",
        {"run": "7"},
        "first",
    )
    assert (version.dataset_sha256, version.rows, version.fit) == (data.sha256, 2000, fit.id)
    assert (version.verdict, version.created_by) == ("improved", "tests")
    assert {"python", "numpy", "torch"} <= set(version.libraries)
    assert Report.from_dict(report).verdict == version.verdict
    key = map_key(place.workspace, version.id, version.map_sha256)
    content = place.blobs.get(key, version.map_sha256)
    assert len(content) == version.map_bytes
    assert archive.load(content).method == "smart"
    assert version.onnx_sha256 is not None
    key = onnx_key(place.workspace, version.id, version.onnx_sha256)
    assert place.blobs.get(key, version.onnx_sha256)


def test_an_evaluation_dataset_and_a_held_out_share_are_used(place: Place) -> None:
    data, other = place.dataset(), place.dataset()
    ending = ended(place, place.start_fit(data, ("temperature", {}), evaluation=other))
    assert ending is not None
    assert (
        "separate evaluation set of 2,000 rows"
        in json.loads(ending.versions[0].report)["judged_on"]
    )
    ending = ended(place, place.start_fit(data, ("temperature", {}), held_out=0.4))
    assert ending is not None
    assert json.loads(ending.versions[0].report)["n"] == 800


@pytest.mark.one_backend
def test_a_map_without_onnx_is_a_version_with_a_warning(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    ending = ended(place, place.start_fit(place.dataset(), ("temperature", {})))
    assert ending is not None
    (version,) = ending.versions
    assert version.facts["onnx_sha256"] is None
    assert [one["code"] for one in json.loads(version.fit_info)["warnings"]] == ["onnx_missing"]


@pytest.mark.parametrize(
    ("methods", "code", "message"),
    [
        ([("nonsense", {})], "unknown_method", "nonsense: there is no method 'nonsense'"),
        ([("smart", {"steps": 0})], "bad_parameter", "smart: Smart.steps must be at least 1"),
        ([("smart", {"stps": 9})], "unknown_parameter", "smart: smart has no parameter 'stps'"),
        ([("temperature", {}), ("smart", {"learning_rate": 1.7e308})], "diverged", "smart: "),
    ],
)
def test_failures_name_the_method_and_write_no_version(
    place: Place, methods: list[tuple[str, dict[str, Any]]], code: str, message: str
) -> None:
    fit = place.start_fit(place.dataset(), *methods)
    job = started(place, fit)
    ending = run(job, place.blobs, Hooks(), device="cpu", time_limit=60)
    error = error_of(ending)
    assert error["code"] == code
    assert error["message"].startswith(message)
    assert ending is not None
    done = conclude(place.database, job.fit, ending)
    assert done is not None
    assert (done.status, done.error, done.versions) == (FitStatus.FAILED, error, [])
    assert place.versions_of(fit) == []


def test_a_missing_or_damaged_dataset(place: Place) -> None:
    data = place.dataset()
    key = dataset_key(place.workspace, data.id, data.sha256 or "")
    place.blobs.put(key, b"other bytes")
    assert (
        error_of(ended(place, place.start_fit(data, ("temperature", {}))))["code"] == "blob_corrupt"
    )
    place.blobs.delete(key)
    assert (
        error_of(ended(place, place.start_fit(data, ("temperature", {}))))["code"] == "blob_missing"
    )
    with place.database.write() as store:
        store.datasets.remove(data.id)
    error = error_of(ended(place, place.start_fit(data, ("temperature", {}))))
    assert error["code"] == "dataset_gone"
    assert error["message"] == "the dataset of this fit was deleted: upload it again"


@pytest.mark.one_backend
def test_data_that_cannot_be_fitted_on(place: Place) -> None:
    few = place.dataset(logits=3 * np.eye(3, dtype=np.float32), labels=np.arange(3))
    error = error_of(ended(place, place.start_fit(few, ("temperature", {}))))
    assert error["code"] == "too_few_rows"
    assert error["message"].startswith("temperature: ")


def test_reasons_to_stop(place: Place) -> None:
    data = place.dataset()
    cancelled = ended(place, place.start_fit(data, ("smart", {})), Hooks(Stop.CANCEL))
    assert cancelled == Ending(FitStatus.CANCELLED)
    assert ended(place, place.start_fit(data, ("smart", {})), Hooks(Stop.ABANDON)) is None
    late = error_of(ended(place, place.start_fit(data, ("smart", {})), time_limit=0.0))
    assert late["code"] == "time_limit"
    assert "0 seconds" in late["message"]


def test_the_time_limit_counts_from_the_first_start(place: Place) -> None:
    fit = place.start_fit(place.dataset(), ("temperature", {}))
    with place.database.write() as store:
        first = store.fits.start(fit.id, worker="w0", device="cpu")
        assert first is not None
        assert store.fits.requeue(fit.id, first.attempt)
    job = started(place, fit)
    assert job.fit.attempt == 2
    assert job.fit.started_at == first.started_at


@pytest.mark.one_backend
def test_internal_errors_are_logged_but_not_revealed(place: Place) -> None:
    fit = place.start_fit(place.dataset(), ("temperature", {}))
    with capture_logs() as logged:
        error = error_of(ended(place, fit, Hooks(error=KeyError("/secret/path"))))
    assert error["code"] == "internal_error"
    assert fit.id in error["message"]
    assert "secret" not in error["message"]
    assert [(one["event"], one["fit"], one["exc_info"]) for one in logged] == [
        ("fit_failed", fit.id, True)
    ]


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")]
)
def test_too_little_memory(place: Place, error: Exception) -> None:
    ending = ended(place, place.start_fit(place.dataset(), ("temperature", {})), Hooks(None, error))
    assert error_of(ending)["code"] == "out_of_memory"


def test_an_attempt_that_runs_no_longer_writes_nothing(place: Place) -> None:
    fit = place.start_fit(place.dataset(), ("temperature", {}))
    first = started(place, fit)
    with place.database.write() as store:
        assert store.fits.requeue(fit.id, first.fit.attempt)
    second = started(place, fit)
    ending = run(first, place.blobs, Hooks(), device="cpu", time_limit=60)
    assert ending is not None
    assert conclude(place.database, first.fit, ending) is None
    assert place.versions_of(fit) == []
    assert place.fit(fit.id).status is FitStatus.RUNNING
    assert conclude(place.database, second.fit, ending) is not None
    assert conclude(place.database, second.fit, ending) is None
    assert len(place.versions_of(fit)) == 1


def test_a_fit_that_does_not_wait_is_not_begun(place: Place) -> None:
    fit = place.start_fit(place.dataset(), ("temperature", {}))
    with place.database.write() as store:
        store.fits.cancel(fit.id)
    assert begin(place.database, fit.id, worker="w1", device="cpu") is None


@pytest.mark.parametrize("status", FINAL)
def test_datasets_sent_for_fits_go_with_the_end_of_the_last(
    place: Place, status: FitStatus
) -> None:
    data = place.dataset(delete_after_fit=True)
    first, last = (place.start_fit(data, ("temperature", {})) for _ in range(2))
    conclude(place.database, started(place, first).fit, Ending(status))
    forget_spent_datasets(place.database, place.blobs, data)
    with place.database.read() as store:
        assert store.datasets.get(place.workspace, data.id) is not None
    conclude(place.database, started(place, last).fit, Ending(status))
    forget_spent_datasets(place.database, place.blobs, data)
    with place.database.read() as store:
        assert store.datasets.get(place.workspace, data.id) is None
    with pytest.raises(BlobMissing):
        place.blobs.get(dataset_key(place.workspace, data.id, data.sha256 or ""), data.sha256 or "")


def test_an_outcome_whose_commit_response_was_lost_is_written_once(place: Place) -> None:
    fit = place.start_fit(place.dataset(), ("temperature", {}))
    job = started(place, fit)
    ending = run(job, place.blobs, Hooks(), device="cpu", time_limit=60)
    assert ending is not None
    assert conclude(place.database, job.fit, ending) is not None
    assert conclude(place.database, job.fit, ending) is None
    assert len(place.versions_of(fit)) == 1


def test_a_worker_paused_after_writing_blobs_does_not_refer_to_them(
    place: Place,
) -> None:
    fit = place.start_fit(place.dataset(), ("temperature", {}))
    job = started(place, fit)
    ending = run(job, place.blobs, Hooks(), device="cpu", time_limit=60)
    assert ending is not None
    late = replace(ending, pending=PendingBlobs(place.blobs, within=-1))
    done = conclude(place.database, job.fit, late)
    assert done is not None
    assert (done.status, done.versions) == (FitStatus.FAILED, [])
    assert done.error is not None
    assert done.error["code"] == "paused_too_long"
    assert place.versions_of(fit) == []


@pytest.mark.one_backend
def test_a_fit_that_needs_too_much_memory_is_refused(place: Place) -> None:
    fit = place.start_fit(place.dataset(), ("matrix", {}))
    job = started(place, fit)
    ending = run(job, place.blobs, Hooks(), device="cpu", time_limit=60, memory_limit=1 << 20)
    error = error_of(ending)
    assert error["code"] == "too_much_memory"
    assert "'matrix' needs about" in error["message"]
    assert "send fewer rows, or choose another method" in error["message"]
    conclude(place.database, job.fit, ending)


@pytest.mark.one_backend
def test_maps_that_are_too_large_together_are_refused_before_the_rest_is_fitted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = place.start_fit(place.dataset(), ("temperature", {}))
    one = ended(place, alone)
    assert one is not None
    size = one.versions[0].facts["map_bytes"]
    monkeypatch.setattr("service.fits.execution.MAX_FIT_BYTES", int(1.5 * size))
    hooks = Hooks()
    fit = place.start_fit(place.dataset(), *[("temperature", {})] * 4)
    assert error_of(ended(place, fit, hooks))["code"] == "maps_too_large"
    assert {one["methods_done"] for one in hooks.told} == {0, 1}


def test_a_fit_that_is_stopped_while_it_writes_leaves_no_blobs(place: Place) -> None:
    class Stopping(Hooks):
        """Stops a fit as soon as it has written something."""

        def stop(self) -> Stop | None:
            return Stop.CANCEL if set(keys(place.blobs)) - before else None

    fit = place.start_fit(place.dataset(), ("temperature", {}), ("identity", {}))
    before = set(keys(place.blobs))
    ending = ended(place, fit, Stopping())
    assert ending is not None
    assert ending.status is FitStatus.CANCELLED
    assert set(keys(place.blobs)) == before


def test_reports_that_are_too_large_together_fail_the_fit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = ended(place, place.start_fit(place.dataset(), ("temperature", {})))
    assert one is not None
    (made,) = one.versions
    assert isinstance(made.report, JsonText)  # so that no writer waits for its serialisation
    assert Report.from_dict(json.loads(made.report)).n > 0
    size = len(made.report) + len(made.fit_info)
    monkeypatch.setattr("service.fits.execution.MAX_DOCUMENT_BYTES", int(1.5 * size))
    before = set(keys(place.blobs))
    many = ended(place, place.start_fit(place.dataset(), *[("temperature", {})] * 2))
    assert error_of(many)["code"] == "reports_too_large"
    assert {one for one in set(keys(place.blobs)) - before if "/datasets/" not in one} == set()
