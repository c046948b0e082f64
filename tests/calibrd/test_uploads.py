"""Uploads: deduplicated, in parts, resumed after interruptions, and stored as given."""

from __future__ import annotations

import asyncio
import json
import signal
import struct
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.faulty_http_proxy import FaultyLine, ReceivedRequest, Say, first, lose
from helpers.live_service import Running, by_the_clock, sample

import calibrd
from calibrators import DataError
from calibrd import errors

SMALL = 2048


@pytest.fixture
def over(line: FaultyLine) -> Iterator[calibrd.Client]:
    """Return a client that uploads in small parts over the faulty connection."""
    with calibrd.Client(line.url, part_bytes=SMALL) as made:
        yield made


@pytest.fixture
def data(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray]:
    """Return data that no other test has sent."""
    seed = sum(request.node.name.encode())
    return sample(seed=seed)


def stored(service: Running, dataset: calibrd.Dataset) -> dict[str, np.ndarray]:
    """Return the arrays as stored in the service's folder."""
    (path,) = (
        path
        for path in service.data_dir.rglob(f"*{dataset.sha256}*")
        if path.is_file() and dataset.id in str(path)
    )
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    types = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I64": "<i8"}
    found = {}
    for name, told in header.items():
        start, stop = (8 + length + offset for offset in told["data_offsets"])
        array = np.frombuffer(content[start:stop], types[told["dtype"]])
        found[name] = array.reshape(told["shape"])
    return found


def test_equal_data_is_sent_once(service: Running, line: FaultyLine, data) -> None:
    with calibrd.Client(line.url) as client:
        made = client.upload(*data, progress=False)
        assert line.sent_bytes == made.bytes
        assert client.upload(*data, progress=False) == made
        assert client.upload(data[0].tolist(), data[1].tolist(), progress=False).id != made.id
        line.asked.clear()
        assert client.upload(data[0].copy(), data[1].astype(np.uint8), progress=False) == made
    assert line.sent_bytes == 0
    assert len(line.asked) == 1


def test_a_dataset_that_expires_soon_is_renewed(client: calibrd.Client, data) -> None:
    made = client.upload(*data, delete_after_fit=True, days=0.5, progress=False)
    assert made.delete_after_fit
    assert made.expires_at is not None
    again = client.upload(*data, progress=False)
    assert again.id == made.id
    assert not again.delete_after_fit
    assert again.expires_at is None


def test_big_data_go_in_parts_and_several_at_once(
    service: Running, over: calibrd.Client, line: FaultyLine, data
) -> None:
    now, most, lock = [0], [0], threading.Lock()

    def slow(asked: ReceivedRequest) -> Say | None:
        if asked.method == "PUT":
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            time.sleep(0.05)
            with lock:
                now[0] -= 1
        return None

    line.before = slow
    made = over.upload(*data, progress=False)
    parts = [one.bytes for one in line.asked if one.method == "PUT"]
    assert made.bytes == sum(parts)
    assert len(parts) == -(-sum(parts) // SMALL) > 4
    assert max(parts) == SMALL
    assert 1 < most[0] <= 4
    found = stored(service, made)
    assert np.array_equal(found["logits"], data[0])
    assert np.array_equal(found["labels"], data[1])


def test_the_same_awaited(service: Running, line: FaultyLine, data) -> None:
    async def work() -> calibrd.Dataset:
        async with calibrd.AsyncClient(line.url, part_bytes=SMALL) as client:
            return await client.upload(*data, progress=False)

    line.after = first(2, lose, "PUT")
    made = asyncio.run(work())
    assert np.array_equal(stored(service, made)["logits"], data[0])
    assert line.count("PUT") == -(-made.bytes // SMALL) + 2


def test_a_dropped_connection_is_retried(
    over: calibrd.Client, line: FaultyLine, client: calibrd.Client, data
) -> None:
    line.before = first(3, lose, "PUT")
    line.after = first(1, lose, "POST", "/commit")
    made = over.upload(*data, progress=False)
    assert line.count("PUT") == -(-made.bytes // SMALL) + 3
    assert line.count("POST", "/commit") == 2
    assert client.get_dataset(f"sha256:{made.sha256}") == made


def test_an_interrupted_upload_resumes_later(
    line: FaultyLine, client: calibrd.Client, data, cache_dir: Path
) -> None:
    arrived = threading.Semaphore(3)

    def dies(asked: ReceivedRequest) -> Say | None:
        if asked.method == "PUT" and not arrived.acquire(blocking=False):
            lose()
        return None

    line.before = dies
    before = {one.id for one in client.datasets()}
    with (
        calibrd.Client(line.url, part_bytes=SMALL, retry_seconds=0) as broken,
        pytest.raises(errors.ServiceAway),
    ):
        broken.upload(*data, progress=False)
    (remembered,) = (path for path in cache_dir.rglob("uploads/*"))
    line.before = lambda asked: None
    line.asked.clear()
    with calibrd.Client(line.url, part_bytes=SMALL) as later:
        made = later.upload(*data, progress=False)
    assert remembered.name.startswith(made.sha256 or "-")
    assert made.bytes is not None
    assert line.count("PUT") == -(-made.bytes // SMALL) - 3
    assert {one.id for one in client.datasets()} - before == {made.id}
    assert not remembered.exists()


@pytest.mark.parametrize("written", ["", "..", "ds_1/../2\n", "\x00" * 30])
def test_a_cached_value_that_is_not_an_id_counts_as_missing(
    client: calibrd.Client, line: FaultyLine, data, cache_dir: Path, written: str
) -> None:
    line.before = lambda asked: lose() if asked.method == "PUT" else None
    with (
        calibrd.Client(line.url, part_bytes=SMALL, retry_seconds=0) as broken,
        pytest.raises(errors.ServiceAway),
    ):
        broken.upload(*data, progress=False)
    (remembered,) = cache_dir.rglob("uploads/*")
    remembered.write_text(written)
    line.before = lambda asked: None
    with calibrd.Client(line.url, part_bytes=SMALL) as later:
        assert later.upload(*data, progress=False).status == "ready"
    assert not remembered.exists()


def test_a_deleted_upload_starts_over(
    over: calibrd.Client, line: FaultyLine, client: calibrd.Client, data, cache_dir: Path
) -> None:
    refused = {"code": "no_such_dataset", "detail": "it was given up"}
    line.before = first(1, lambda: Say(404, {}, json.dumps(refused).encode()), "PUT")
    made = over.upload(*data, progress=False)
    assert made.rows == len(data[1])
    assert not list(cache_dir.rglob("uploads/*"))


def test_parts_that_were_lost_are_sent_again(
    over: calibrd.Client, line: FaultyLine, client: calibrd.Client, data
) -> None:
    pretended = Say(200, {}, b"{}")
    line.before = first(2, lambda: pretended, "PUT")
    made = over.upload(*data, progress=False)
    assert made.status == "ready"
    assert line.count("POST", "/commit") == 2
    assert line.count("PUT") == -(-(made.bytes or 0) // SMALL) + 2


def test_concurrent_equal_uploads_create_one_dataset(line: FaultyLine, data) -> None:
    def send(found: list[str]) -> None:
        with calibrd.Client(line.url, part_bytes=SMALL) as one:
            found.append(one.upload(*data, progress=False).id)

    found: list[str] = []
    threads = [threading.Thread(target=send, args=(found,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert len(set(found)) == 1


@by_the_clock
@pytest.mark.parametrize("fault", [lose, lambda: time.sleep(8)], ids=["lost", "hangs"])
def test_ctrl_c_does_not_wait(over: calibrd.Client, line, data, fault) -> None:
    line.before = lambda asked: fault() if asked.method == "PUT" else None
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(1.0, signal.pthread_kill, [main, signal.SIGINT]).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        over.upload(*data, progress=False)
    assert time.monotonic() - began < 5


def test_an_upload_holds_no_second_copy(client: calibrd.Client, service: Running) -> None:
    logits, labels = sample(rows=200_000, classes=20)
    with calibrd.Client(service.url, part_bytes=1 << 18) as small:
        tracemalloc.start()
        try:
            made = small.upload(logits, labels, progress=False)
            left, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert made.bytes is not None
    assert peak < made.bytes / 2, f"{peak / 1e6:.1f} of {made.bytes / 1e6:.1f} MB"
    assert left < made.bytes / 4, "the bytes of parts live on after they were sent"
    client.delete_dataset(made.id)


LOGITS, LABELS = sample(rows=60, classes=4, seed=77)


@pytest.mark.parametrize(
    ("logits", "dtype"),
    [
        (LOGITS.astype(np.float16), "<f2"),
        (LOGITS, "<f4"),
        (LOGITS.astype(np.float64) / 3, "<f8"),
        (LOGITS.astype(">f4"), "<f4"),
        (LOGITS.astype(">f8"), "<f8"),
        (LOGITS.astype(np.longdouble), "<f8"),
        (np.asfortranarray(LOGITS), "<f4"),
        (np.repeat(LOGITS, 2, axis=0)[::2], "<f4"),
        (LOGITS[:, ::-1], "<f4"),
        (LOGITS.round().astype(np.int32), "<f8"),
        (LOGITS.round().astype(np.int8), "<f8"),
        (LOGITS.tolist(), "<f8"),
    ],
    ids=str,
)
def test_logits_are_stored_as_they_are(
    client: calibrd.Client, service: Running, logits: Any, dtype: str
) -> None:
    found = stored(service, client.upload(logits, LABELS, progress=False))
    assert found["logits"].dtype == dtype
    assert np.array_equal(found["logits"], np.asarray(logits))
    assert np.array_equal(found["labels"], LABELS)


@pytest.mark.parametrize("column", [LOGITS[:, 0] + 2, LOGITS[:, :1] + 2], ids=["(n,)", "(n, 1)"])
@pytest.mark.parametrize("kind", [np.bool_, np.int8, np.uint64, np.dtype(">i4")], ids=str)
def test_labels_are_stored_as_class_indices(
    client: calibrd.Client, service: Running, column: np.ndarray, kind: Any
) -> None:
    labels = (LABELS % 2).astype(kind)
    made = client.upload(column, labels, progress=False)
    assert (made.rows, made.classes) == (60, 2)
    found = stored(service, made)
    assert np.array_equal(found["logits"].ravel(), column.ravel())
    assert np.array_equal(found["labels"], LABELS % 2)


def test_probabilities_are_stored_as_probabilities(
    client: calibrd.Client, service: Running
) -> None:
    shifted = np.exp(LOGITS - LOGITS.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    made = client.upload(probabilities, LABELS, kind="probabilities", progress=False)
    assert made.kind == "probabilities"
    assert np.array_equal(stored(service, made)["probabilities"], probabilities)


def test_invalid_input_is_not_sent(over: calibrd.Client, line: FaultyLine) -> None:
    broken = LOGITS.copy()
    broken[3, 1] = np.nan
    for logits, labels, code in (
        (broken, LABELS, "nan"),
        (LOGITS, LABELS[:-1], "length_mismatch"),
        (LOGITS, LABELS + 9, "label_out_of_range"),
        (np.ma.masked_less(LOGITS, 0), LABELS, "masked"),
        (LOGITS, LABELS.astype(float), "labels_not_integers"),
    ):
        with pytest.raises(DataError) as raised:
            over.upload(logits, labels)
        assert raised.value.code == code
    assert not line.asked
