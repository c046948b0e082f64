"""Fits on data from which no method can learn end cleanly, and the doctor finds no problem."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.backends import Backend
from helpers.fit_fixtures import Hooks, Place, begin
from helpers.samples import features_of, head_of
from sqlalchemy import update

from calibrators import CalibrationWarning, all_methods
from service.fits.execution import conclude, run
from service.maintenance.doctor import Doctor
from service.maintenance.doctor_messages import Finding
from service.storage.records import FitStatus, Version
from service.storage.tables import versions

pytestmark = pytest.mark.both_backends

METHODS = sorted(all_methods())
SCALES = itertools.count(1)  # so that no two datasets are the same
rng = np.random.default_rng(0)
LOGITS = rng.normal(size=(300, 4)) * 2
DATA: dict[str, tuple[Any, Any]] = {
    "constant logits": (np.full((300, 4), 3.0), rng.integers(4, size=300)),
    "one class only": (LOGITS, np.full(300, 2)),
    "all right": (LOGITS, LOGITS.argmax(axis=1)),
    "all wrong": (LOGITS, LOGITS.argmin(axis=1)),
    "three rows": (LOGITS[:3], LOGITS[:3].argmax(axis=1)),
}
FALLING_BACK = set(METHODS) - {"auto", "identity", "segmented", "temperature"}
FALLING_BACK -= {name for name, one in all_methods().items() if one.needs_features}


@pytest.fixture(scope="module")
def place(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(**backend.settings(tmp_path_factory.mktemp("hopeless")))
    yield made
    made.close()


def findings(place: Place) -> list[Finding]:
    looking = Doctor(place.database, place.blobs, orphan_seconds=3600)
    return list(looking.findings())


def fitted(place: Place, case: str, *methods: str) -> tuple[FitStatus, list[Version]]:
    """Return the versions that a worker creates from data."""
    logits, labels = DATA[case]
    segments = np.resize(["app", "web"], len(labels))
    logits = logits * next(SCALES)
    weight, bias = head_of(4)
    data = place.dataset(
        logits=logits,
        labels=labels,
        segments=segments,
        features=features_of(logits),
        head_weight=weight,
        head_bias=bias,
    )
    fit = place.start_fit(data, *((name, {}) for name in methods))
    job = begin(place.database, fit.id, worker="w1", device="cpu")
    assert job is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        ending = run(job, place.blobs, Hooks(), device="cpu", time_limit=120)
    assert ending is not None
    done = conclude(place.database, job.fit, ending)
    assert done is not None
    with place.database.read() as store:
        found = [store.calibrators.version(place.calibrator.id, one) for one in done.versions]
    return done.status, [one for one in found if one is not None]


@pytest.mark.parametrize("case", DATA)
def test_the_doctor_finds_nothing(place: Place, case: str) -> None:
    status, made = fitted(place, case, *METHODS)
    if case == "three rows":
        assert (status, made) == (FitStatus.FAILED, [])
    else:
        assert status is FitStatus.SUCCEEDED
        assert [one.method for one in made] == METHODS
    if case in ("constant logits", "all right", "all wrong"):
        assert {one.method for one in made if "fallback" in one.fit_info} == FALLING_BACK
        for one in made:
            codes = [warning["code"] for warning in one.fit_info["warnings"]]
            assert ("fell_back" in codes) == (one.method in FALLING_BACK)
    assert findings(place) == []


def test_only_a_fallback_may_have_another_method(place: Place) -> None:
    _, (mine,) = fitted(place, "all right", "smart")
    assert findings(place) == []
    with place.database.write() as store:
        changed = update(versions).where(versions.c.id == mine.id).values(method="vector")
        store.session.execute(changed)
    (found,) = findings(place)
    assert (found.code, found.subject) == ("row_differs", f"version digits@{mine.number}")
    with place.database.write() as store:
        again = update(versions).where(versions.c.id == mine.id).values(method="smart")
        store.session.execute(again)
