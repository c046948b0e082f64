"""The cache of loaded maps: no repeated downloads, hash checks, sharing and clean-up."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from helpers.local_maps import LOGITS, answers, fitted, release

import calibrd
from calibrators import archive
from calibrd.api.references import Reference
from calibrd.maps.cache import SWEPT_AFTER_SECONDS, LoadedMap, MapCache
from calibrd.transport.connection import Connection
from calibrd.transport.disk_cache import Cache


def files_of(cache_dir: Path, suffix: str) -> list[Path]:
    return sorted(cache_dir.glob(f"*/maps/*{suffix}"))


def test_stored_bytes_are_not_sent_again(client: calibrd.Client, cache_dir: Path) -> None:
    version = release(client, "etag", 2.0)
    first = client.load("etag", refresh=None)
    (content,) = files_of(cache_dir, ".map")
    assert content.name == f"{version.map_sha256}.map"
    for path in (content, *files_of(cache_dir, ".json")):
        assert path.stat().st_mode & 0o077 == 0
    seen = answers(client)
    again = client.load("etag", refresh=None)
    assert [(one.status_code, one.url.path.rpartition("/")[2]) for one in seen] == [
        (200, "production"),
        (304, "map"),
    ]
    assert seen[1].request.headers["if-none-match"] == f'"{version.map_sha256}"'
    assert np.array_equal(again.apply(LOGITS), first.apply(LOGITS))
    assert again.confirmed_at > first.confirmed_at


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".map", lambda whole: whole[:-1]),
        (".map", lambda whole: b""),
        (".map", lambda whole: whole[:-1] + bytes([whole[-1] ^ 1])),
        (".map", None),
        (".json", lambda whole: whole[: len(whole) // 2]),
        (".json", lambda whole: b"\xff\xfe"),
        (".json", lambda whole: b"[]"),
        (".json", lambda whole: whole.replace(b'"sha256": "', b'"sha256": "../')),
    ],
)
def test_a_damaged_cache_is_not_used(
    client: calibrd.Client, cache_dir: Path, suffix: str, damage
) -> None:
    name = "damaged"
    if not any(one.name == name for one in client.calibrators()):
        release(client, name, 3.0)
    client.load(name, refresh=None)
    (path,) = files_of(cache_dir, suffix)
    whole = path.read_bytes()
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(whole))
    seen = answers(client)
    local = client.load(name, refresh=None)
    assert np.array_equal(local.apply(LOGITS), fitted(3.0).apply(LOGITS))
    assert [one.status_code for one in seen] == [200, 200, 200]
    assert path.exists()
    seen.clear()
    client.load(name, refresh=None)
    assert [one.status_code for one in seen] == [200, 304]


def test_a_cache_that_cannot_be_written_only_logs(
    client: calibrd.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    release(client, "unwritable", 2.0)
    (tmp_path / "file").touch()
    monkeypatch.setenv("CALIBRD_CACHE_DIR", str(tmp_path / "file" / "cache"))
    caplog.set_level(logging.INFO, "calibrd")
    for _ in range(2):
        local = client.load("unwritable", refresh=None)
        assert np.array_equal(local.apply(LOGITS), fitted(2.0).apply(LOGITS))
    assert "cannot cache the map of unwritable@production" in caplog.text


def test_old_bytes_that_no_entry_names_are_removed(client: calibrd.Client, cache_dir: Path) -> None:
    first = release(client, "swept", 2.0)
    client.load("swept@1", refresh=None)
    client.load("swept", refresh=None)
    second = release(client, "swept", 3.0)
    client.load("swept", refresh=None)
    (folder,) = cache_dir.glob("*/maps")
    old = time.time() - 2 * SWEPT_AFTER_SECONDS
    for name in ("tmp_of_a_dead_writer", f"{'0' * 64}.map"):
        (folder / name).touch()
        os.utime(folder / name, (old, old))
    (folder / "tmp_of_a_writer").touch()
    os.utime(folder / f"{first.map_sha256}.map", (old, old))
    os.utime(folder / f"{second.map_sha256}.map", (old, old))
    third = release(client, "swept", 4.0)
    client.load("swept", refresh=None)
    left = {path.name for path in folder.iterdir() if path.suffix != ".json"}
    # swept@1 refers to the first map, and no entry refers to the second
    kept = {f"{one.map_sha256}.map" for one in (first, third)}
    assert left == {*kept, "tmp_of_a_writer"}


def test_the_map_that_is_kept_is_the_service_s(client: calibrd.Client, cache_dir: Path) -> None:
    release(client, "kept", 2.0)
    client.load("kept", refresh=None)
    (path,) = files_of(cache_dir, ".map")
    assert path.read_bytes() == client.get_map("kept")
    assert archive.load(path.read_bytes()).temperature == 2.0


def test_many_write_and_read_the_same_entry() -> None:
    cache = MapCache(Cache(Connection.make("http://a", None, timeout=1, retry_seconds=0)))
    reference, done, odd = Reference("shared", "production"), threading.Event(), []
    contents = [archive.dump(fitted(1.0 + number)) for number in range(4)]

    def write(number: int) -> None:
        content = contents[number]
        sha256 = hashlib.sha256(content).hexdigest()
        loaded = LoadedMap(number, sha256, None, datetime.now(UTC), fitted(1.0 + number))
        for _ in range(25):
            cache.write(reference, loaded, content)

    def read() -> None:
        while not done.is_set():
            found = cache.read(reference)
            if found is None or found.map.temperature != 1.0 + found.number:
                odd.append(found)

    write(0)
    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    reader = threading.Thread(target=read)
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert not odd
    assert len(list(cache.folder.iterdir())) == 5
