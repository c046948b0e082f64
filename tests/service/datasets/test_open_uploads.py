"""Uncommitted uploads in parts: limits on their size and their lifetime."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers import raw_blobs as stored
from helpers.backends import Backend, Fleet
from helpers.fit_fixtures import Place
from helpers.live_service import Local, in_process
from helpers.workers import housekeeping
from sqlalchemy import event, insert, update

from service.settings import DAY
from service.storage.records import Part
from service.storage.repository import DELETE_BATCH
from service.storage.tables import datasets, idempotency

pytestmark = pytest.mark.both_backends

MOST = 4000
PART = 1024


@pytest.fixture
def limited(backend: Backend, tmp_path: Path) -> Iterator[Local]:
    """Return the app with small limits."""
    limits = {"max_upload_bytes": MOST, "max_open_upload_bytes": 2 * MOST, "max_open_uploads": 3}
    with in_process(**backend.settings(tmp_path), max_part_bytes=MOST, **limits) as made:
        yield made


def opened(client: httpx.Client) -> str:
    """Open an upload and return its path."""
    return f"/v1/datasets/{client.post('/v1/datasets?upload=parts').json()['id']}"


def put(client: httpx.Client, url: str, number: int, size: int, fill: bytes = b"x") -> str:
    """Send a part; return "ok", or the code of the refusal."""
    answer = client.put(f"{url}/parts/{number}", content=fill * size)
    return "ok" if answer.is_success else f"{answer.status_code} {answer.json()['code']}"


def kept_bytes(local: Local) -> int:
    """Return the total size of all parts in the store."""
    return sum(blob.bytes for blob in local.app.state.parts.blobs.list() if "/parts/" in blob.key)


def test_the_parts_of_an_upload_are_no_more_than_a_dataset_may_be(limited: Local) -> None:
    url = opened(limited)
    sent = [put(limited, url, number, PART) for number in range(1, 7)]
    assert sent == ["ok"] * 3 + ["413 body_too_large"] * 3
    assert kept_bytes(limited) == 3 * PART
    assert [part["number"] for part in limited.get(url).json()["parts"]] == [1, 2, 3]


def test_a_part_that_is_sent_again_counts_with_its_new_size_alone(limited: Local) -> None:
    url = opened(limited)
    assert put(limited, url, 1, 3000) == "ok"
    for fill in (b"a", b"b", b"c"):
        assert put(limited, url, 1, 3500, fill) == "ok"
    assert put(limited, url, 1, 3500, b"c") == "ok"
    assert put(limited, url, 2, PART) == "413 body_too_large"
    assert put(limited, url, 1, 100) == "ok"
    assert put(limited, url, 2, PART) == "ok"
    assert kept_bytes(limited) == 100 + PART


def test_concurrent_parts_do_not_exceed_the_limit_together(limited: Local) -> None:
    url = opened(limited)
    with ThreadPoolExecutor(8) as many:
        sent = list(many.map(lambda number: put(limited, url, number, PART), range(1, 17)))
    assert sent.count("ok") == 3
    assert set(sent) == {"ok", "413 body_too_large"}
    assert kept_bytes(limited) == 3 * PART


def test_a_part_that_arrives_while_others_are_joined_is_neither_lost_nor_orphaned(
    limited: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = opened(limited)
    rows = [b"logit_0,logit_1,label\n1,2,0\n", b"2,1,1\n"]
    assert limited.put(f"{url}/parts/1", content=rows[0]).status_code == 200
    inspect = limited.app.state.parts.datasets.facts

    def slow_inspect(*asked: Any) -> Any:
        assert limited.put(f"{url}/parts/2", content=rows[1]).status_code == 200
        monkeypatch.undo()
        return inspect(*asked)

    monkeypatch.setattr(limited.app.state.parts.datasets, "facts", slow_inspect)
    asked = {"content_type": "text/csv"}
    refused = limited.post(f"{url}/commit", json=asked)
    assert (refused.status_code, refused.json()["code"]) == (409, "upload_changed")
    made = limited.post(f"{url}/commit", json=asked)
    assert (made.status_code, made.json()["rows"]) == (200, 2), made.text
    assert kept_bytes(limited) == 0


def test_all_uploads_of_a_workspace_have_a_limit_together(limited: Local) -> None:
    urls = [opened(limited) for _ in range(3)]
    refused = limited.post("/v1/datasets?upload=parts")
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_uploads")
    assert [put(limited, url, 1, 3500) for url in urls] == ["ok", "ok", "413 uploads_too_large"]
    assert limited.delete(urls[0]).status_code == 204
    assert put(limited, urls[2], 1, 3500) == "ok"
    assert limited.post("/v1/datasets?upload=parts").status_code == 201


def test_the_parts_of_all_uploads_have_a_limit_together(
    limited: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.datasets.part_uploads.MAX_OPEN_PARTS", 3)
    first, second = opened(limited), opened(limited)
    assert [put(limited, first, number, 1) for number in (1, 2)] == ["ok", "ok"]
    assert put(limited, second, 1, 1) == "ok"
    assert put(limited, second, 2, 1) == "409 too_many_open_parts"
    assert put(limited, second, 1, 2) == "ok"
    assert limited.delete(first).status_code == 204
    assert put(limited, second, 2, 1) == "ok"


def test_uploads_opened_concurrently_do_not_exceed_the_limit_together(limited: Local) -> None:
    def open_one(_: int) -> int:
        return limited.post("/v1/datasets?upload=parts").status_code

    with ThreadPoolExecutor(8) as many:
        assert sorted(many.map(open_one, range(8))) == [201] * 3 + [409] * 5


def test_announced_parts_count_as_well(shared_fleet: Fleet, tmp_path: Path) -> None:
    settings = shared_fleet.settings(tmp_path)
    with in_process(**settings, max_upload_bytes=MOST, max_part_bytes=MOST) as local:
        url = opened(local)
        sha256 = hashlib.sha256(b"").hexdigest()
        for number, status in ((1, 200), (2, 200), (3, 413), (1, 200)):
            promised = {"parts": [{"number": number, "bytes": 1500, "sha256": sha256}]}
            assert local.post(f"{url}/parts/presigned", json=promised).status_code == status
        assert put(local, url, 3, 1500) == "413 body_too_large"
        assert put(local, url, 2, 1500) == "ok"


def test_uploads_that_were_left_open_are_deleted_after_a_week(place: Place) -> None:
    with place.database.write() as store:
        for id in ("ds_old", "ds_new"):
            store.datasets.add(
                place.workspace, id, kind=None, delete_after_fit=False, keep_seconds=None
            )
        age = datasets.c.created_at - 8 * DAY
        store.session.execute(
            update(datasets).where(datasets.c.id == "ds_old").values(created_at=age)
        )
    housekeeping(place, "alive", silence=60).keep_house()
    with place.database.read() as store:
        assert store.datasets.get(place.workspace, "ds_old") is None
        assert store.datasets.get(place.workspace, "ds_new") is not None
    assert stored.keys(place.blobs) == []


def test_many_old_rows_are_deleted_in_short_transactions(place: Place) -> None:
    count = 2 * DELETE_BATCH + 1
    row = {"workspace": place.workspace, "request_sha256": "0" * 64, "answer": {}}
    with place.database.write() as store:
        old = [{**row, "key": str(number), "created_at": 1.0} for number in range(count)]
        store.session.execute(insert(idempotency), old)
    deleted: list[int] = []

    def note(_c: object, cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("DELETE FROM idempotency_keys"):
            deleted.append(cursor.rowcount)  # type: ignore[attr-defined]

    event.listen(place.database.engine, "after_cursor_execute", note)
    housekeeping(place, "alive", silence=60).keep_house()
    event.remove(place.database.engine, "after_cursor_execute", note)
    assert deleted == [DELETE_BATCH, DELETE_BATCH, 1]


def test_the_bytes_of_parts_are_kept_as_a_sum(place: Place) -> None:
    with place.database.write() as store:
        for id in ("ds_a", "ds_b"):
            store.datasets.add(place.workspace, id, delete_after_fit=False, keep_seconds=None)
        store.datasets.put_parts("ds_a", [Part("ds_a", number, 10, "0" * 64) for number in (1, 2)])
        store.datasets.put_parts("ds_a", [Part("ds_a", 2, 25, "1" * 64)])
        store.datasets.put_parts("ds_b", [Part("ds_b", 1, 7, "2" * 64)])
        assert store.datasets.bytes_of_parts("ds_a") == 35
        assert store.datasets.open_bytes(place.workspace) == 42
        store.datasets.remove("ds_a")
        assert store.datasets.open_bytes(place.workspace) == 7


def test_uploads_leave_no_folders(limited: Local, tmp_path: Path) -> None:
    for _ in range(3):
        url = opened(limited)
        assert put(limited, url, 1, 10) == "ok"
        assert limited.delete(url).status_code == 204
    assert not [path for path in tmp_path.rglob("parts/*") if path.is_dir()]
