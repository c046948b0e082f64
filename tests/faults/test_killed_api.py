"""API processes killed during requests: everything acknowledged is stored, exactly once."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
from helpers.both_backends import on_both
from helpers.live_service import NPZ, Running, every, npz, sample
from helpers.sites import Site

from service.storage.blob_keys import dataset_key

PIECE = 1 << 18
LOST = (httpx.TransportError,)
ANSWERED = 60.0


@dataclass
class Sent:
    """A request to a service that may die, and its response if there was one."""

    content: bytes
    path: str
    headers: dict[str, str]
    pause: float = 0.0  # between the pieces
    status: int | None = None
    answer: dict | None = None
    seconds: float = 0.0

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def send(self, to: Running) -> None:
        began = time.monotonic()
        try:
            with to.client() as client:
                said = client.post(self.path, content=self._pieces(), headers=self.headers)
            self.status, self.answer = said.status_code, said.json()
        except LOST:
            pass
        self.seconds = time.monotonic() - began

    def _pieces(self) -> Iterator[bytes]:
        for start in range(0, len(self.content), PIECE):
            yield self.content[start : start + PIECE]
            time.sleep(self.pause)


def upload(number: int) -> Sent:
    return Sent(npz(*sample(20_000, 50, seed=number)), "/v1/datasets", NPZ)


def order(number: int) -> Sent:
    path = f"/v1/calibrators/c{number}/fits?method=temperature&description=order-{number}"
    headers = {**NPZ, "Idempotency-Key": f"key-{number}"}
    return Sent(npz(*sample(20_000, 50, seed=1000 + number)), path, headers)


@on_both
def test_a_killed_api_loses_nothing_that_it_acknowledged(
    own_site: Site, note: Callable[..., None]
) -> None:
    site, count = own_site, 20
    dice = random.Random(4)  # noqa: S311
    second = site.replica(site.folder / "second") if site.is_fleet else None
    first = site.replica()
    usual = {}
    for make in (upload, order):
        whole = make(900)
        whole.send(first)
        assert whole.status in (201, 202), whole.answer
        usual[make] = whole.seconds
    first = leave_an_upload_behind(site, first)
    acknowledged = 0
    for number in range(count):
        make = (upload, order)[number % 2]
        sent = make(number)
        is_last = number == count - 1
        kill_during(first, sent, ANSWERED if is_last else dice.uniform(0, 1.2 * usual[make]))
        first = site.replica()
        acknowledged += sent.status is not None
        check(site, sent, first, second or first)
    assert acknowledged
    assert not list((site.settings["data_dir"] / "uploads").iterdir())
    assert_datasets_are_whole(site)
    note(
        f"kill -9 the API while it answers ({site.kind})",
        count + 1,
        acknowledged_before_the_kill=str(acknowledged),
    )


def leave_an_upload_behind(site: Site, api: Running) -> Running:
    """Kill an API process while it receives a body; check that its successor cleans up."""
    slow = upload(800)
    slow.pause = 0.2
    kill_during(api, slow, after=0.8)
    assert slow.status is None
    uploads = site.settings["data_dir"] / "uploads"
    assert len(list(uploads.iterdir())) == 1
    api = site.replica()
    assert not list(uploads.iterdir())
    return api


def kill_during(api: Running, sent: Sent, after: float) -> None:
    """Kill the process some seconds into a request, or immediately after its response."""
    thread = threading.Thread(target=sent.send, args=(api,))
    thread.start()
    thread.join(after)
    api.process.kill()
    api.process.wait()
    thread.join(30)
    assert not thread.is_alive()


def check(site: Site, sent: Sent, restarted: Running, other: Running) -> None:
    """Check that acknowledged data is stored, and that repeating the request changes nothing."""
    is_order = "Idempotency-Key" in sent.headers
    with restarted.client() as client:
        if sent.answer is not None:
            assert sent.status in (201, 202), sent.answer
            kept = client.get(f"/v1/{'fits' if is_order else 'datasets'}/{sent.answer['id']}")
            assert kept.status_code == 200, kept.text
        again = Sent(sent.content, sent.path, sent.headers)
        again.send(other)
        assert again.status in ((202,) if is_order else (200, 201)), again.answer
        assert again.answer is not None
        if sent.answer is not None:
            assert again.answer["id"] == sent.answer["id"]
        named = [one for one in every(client, "/v1/datasets") if one["sha256"] == sent.sha256]
        assert len(named) == 1
        if is_order:
            name = sent.path.split("/")[3]
            (fit,) = every(client, "/v1/fits", calibrator=name)
            assert fit["id"] == again.answer["id"]
            assert fit["dataset"] == named[0]["id"]


def assert_datasets_are_whole(site: Site) -> None:
    with site.place.database.read() as store:
        kept = store.datasets.page(site.place.workspace, 1000, None)
    for one in kept:
        assert one.sha256 is not None
        with site.place.blobs.file(dataset_key(one.workspace, one.id, one.sha256), one.sha256):
            pass
