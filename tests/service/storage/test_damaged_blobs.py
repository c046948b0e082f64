"""Truncated, bit-flipped, swapped and missing blobs: damage is always reported, never served.

Each backend gets 100 cases of damage: 40 to maps, 20 each to ONNX models, datasets and parts.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers import raw_blobs as stored
from helpers.backends import Backend
from helpers.fit_fixtures import Hooks, Place, begin
from helpers.live_service import Local, in_process, npz, sample
from structlog.testing import capture_logs

from service.fits.execution import conclude, run
from service.storage.blob_keys import dataset_key, map_key, onnx_key
from service.storage.blobs import Blobs
from service.storage.records import FitStatus, Version

pytestmark = pytest.mark.both_backends

MAPS, OTHERS = 40, 20
ONE = "/v1/calibrators/digits/versions/1"
TWO = "/v1/calibrators/digits/versions/2"
PREDICT = "/v1/calibrators/digits@{}/predict?logits=3,1,0,0,0"


class Damager:
    """Damages a blob temporarily, in one way after the other."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._ways = itertools.cycle([self._truncated, self._flipped, self._swapped])
        self._random = random.Random(4)  # noqa: S311

    @contextmanager
    def damaged(self, key: str, other: str) -> Iterator[None]:
        """Damage a blob; ``other`` is the key of another valid blob of the same kind."""
        content = stored.content(self._blobs, key)
        damage = next(self._ways)(content, stored.content(self._blobs, other))
        assert damage != content
        stored.overwrite(self._blobs, key, damage)
        yield
        stored.overwrite(self._blobs, key, content)

    def _truncated(self, content: bytes, _other: bytes) -> bytes:
        return content[: self._random.choice([0, self._random.randrange(len(content))])]

    def _flipped(self, content: bytes, _other: bytes) -> bytes:
        place = self._random.randrange(len(content))
        bit = 1 << self._random.randrange(8)
        return content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]

    def _swapped(self, _content: bytes, other: bytes) -> bytes:
        return other


class Ward:
    """A service whose calibrator has two versions with ONNX models, and its alias on the first."""

    def __init__(self, place: Place, client: Local) -> None:
        self.place, self.client = place, client
        self.damager = Damager(place.blobs)
        self.versions = [self._fitted(), self._fitted()]
        body = {"version": 1, "force": True, "reason": "test"}
        url = "/v1/calibrators/digits/aliases/production"
        assert client.put(url, json=body).status_code in (200, 201)
        self.cached = client.get(PREDICT.format("production")).json()

    def _fitted(self) -> Version:
        fit = self.place.start_fit(self.place.dataset(), ("temperature", {}))
        assert self.fit_again(fit.id) is None
        with self.place.database.read() as store:
            (version,) = store.calibrators.versions(self.place.calibrator.id, 1, None)
        return version

    def fit_again(self, id: str) -> str | None:
        """Run a fit as a worker does; return the code of its error."""
        job = begin(self.place.database, id, worker="w", device="cpu")
        assert job is not None
        ending = run(job, self.place.blobs, Hooks(), device="cpu", time_limit=60)
        assert ending is not None
        done = conclude(self.place.database, job.fit, ending)
        assert done is not None
        assert (done.status is FitStatus.SUCCEEDED) == (done.error is None)
        return None if done.error is None else done.error["code"]

    def count(self, kind: str) -> float:
        """Return how often damage of a kind was counted."""
        name = "calibrd_damaged_blobs_total"
        found = self.client.app.state.parts.metrics.registry.get_sample_value(name, {"kind": kind})
        assert found is not None
        return found

    def refused(self, url: str, code: str = "blob_corrupt") -> None:
        """Check that a read is refused and counted while the map in memory is served."""
        kind = code.removeprefix("blob_")
        before = self.count(kind)
        answer = self.client.get(url)
        assert (answer.status_code, answer.json()["code"]) == (500, code)
        assert self.count(kind) == before + 1
        assert self.client.get(PREDICT.format("production")).json() == self.cached


@pytest.fixture
def ward(backend: Backend, tmp_path: Path) -> Iterator[Ward]:
    settings = backend.settings(tmp_path)
    place = Place(**settings)
    with in_process(**settings) as client:
        yield Ward(place, client)
    place.close()


def test_no_damaged_map_is_served_and_the_cached_one_stays_in_use(ward: Ward) -> None:
    # the first version is in memory under its alias, so the second one is damaged
    other, key = (map_key(ward.place.workspace, v.id, v.map_sha256) for v in ward.versions)
    for url in itertools.islice(itertools.cycle([PREDICT.format(2), f"{TWO}/map"]), MAPS):
        with ward.damager.damaged(key, other):
            ward.refused(url)
    content = stored.content(ward.place.blobs, key)
    stored.remove(ward.place.blobs, key)
    with capture_logs() as logs:
        ward.refused(PREDICT.format(2), "blob_missing")
    (line,) = [one for one in logs if one["event"] == "blob_damaged"]
    assert (line["log_level"], line["code"], line["blob"]) == ("error", "blob_missing", "maps")
    stored.overwrite(ward.place.blobs, key, content)
    assert ward.client.get(PREDICT.format(2)).json()["version"] == 2
    metrics = ward.client.get("/metrics").text
    assert f'calibrd_damaged_blobs_total{{kind="corrupt"}} {MAPS}.0' in metrics
    assert 'calibrd_damaged_blobs_total{kind="missing"} 1.0' in metrics


def test_no_damaged_onnx_is_served(ward: Ward) -> None:
    key, other = (onnx_key(ward.place.workspace, v.id, str(v.onnx_sha256)) for v in ward.versions)
    for _ in range(OTHERS):
        with ward.damager.damaged(key, other):
            ward.refused(f"{ONE}/onnx")
    assert ward.client.get(f"{ONE}/onnx").status_code == 200
    stored.remove(ward.place.blobs, key)
    ward.refused(f"{ONE}/onnx", "blob_missing")


def test_no_fit_runs_on_a_damaged_dataset(ward: Ward) -> None:
    place = ward.place
    data, another = place.dataset(), place.dataset()
    key, other = (dataset_key(place.workspace, d.id, str(d.sha256)) for d in (data, another))
    for _ in range(OTHERS):
        with ward.damager.damaged(key, other):
            assert ward.fit_again(place.start_fit(data, ("temperature", {})).id) == "blob_corrupt"
    assert ward.fit_again(place.start_fit(data, ("temperature", {})).id) is None
    stored.remove(place.blobs, key)
    assert ward.fit_again(place.start_fit(data, ("temperature", {})).id) == "blob_missing"
    metrics = ward.client.get("/metrics").text
    assert f'calibrd_failed_fits{{code="blob_corrupt"}} {OTHERS}.0' in metrics
    assert 'calibrd_failed_fits{code="blob_missing"} 1.0' in metrics


def test_no_damaged_part_becomes_a_dataset(ward: Ward) -> None:
    body, client = npz(*sample(60)), ward.client
    upload = client.post("/v1/datasets?upload=parts").json()["id"]
    half = len(body) // 2
    for number, piece in ((1, body[:half]), (2, body[half : 2 * half])):
        client.put(f"/v1/datasets/{upload}/parts/{number}", content=piece)
    key, other = (key for key in stored.keys(ward.place.blobs) if f"/parts/{upload}/" in key)
    for _ in range(OTHERS):
        with ward.damager.damaged(key, other):
            answer = client.post(f"/v1/datasets/{upload}/commit")
            assert (answer.status_code, answer.json()["code"]) == (409, "part_differs")
    content = stored.content(ward.place.blobs, key)
    stored.remove(ward.place.blobs, key)
    answer = client.post(f"/v1/datasets/{upload}/commit")
    assert (answer.status_code, answer.json()["code"]) == (409, "parts_missing")
    stored.overwrite(ward.place.blobs, key, content)
    client.put(f"/v1/datasets/{upload}/parts/3", content=body[2 * half :])
    done = client.post(f"/v1/datasets/{upload}/commit")
    assert done.status_code in (200, 201), done.text
