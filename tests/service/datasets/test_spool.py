"""Temporary files of incoming bodies: created, written and deleted by threads."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.format_samples import npz
from helpers.live_service import in_process
from helpers.samples import draw

from service.datasets.spool import Spool

NPZ = {"Content-Type": "application/x-npz"}
HOOKED: list[tuple[Path, list[str]]] = []


def _body(rows: int) -> bytes:
    data = draw(rows, 3)
    return npz(logits=data.logits, labels=data.labels)


def _note(event: str, args: tuple[object, ...]) -> None:
    """Record file events below a watched folder that happen on a thread with an event loop."""
    if event not in ("open", "os.remove", "os.mkdir", "fcntl.flock") or not HOOKED:
        return
    folder, noted = HOOKED[-1]
    is_below = event == "fcntl.flock" or str(args[0]).startswith(str(folder))
    if is_below and asyncio._get_running_loop() is not None:
        noted.append(f"{event} {args[0]}")


sys.addaudithook(_note)


@pytest.fixture
def noted(tmp_path: Path) -> Iterator[list[str]]:
    HOOKED.append((tmp_path / "uploads", []))
    yield HOOKED[-1][1]
    HOOKED.pop()


def test_bodies_of_all_routes_touch_the_disk_only_in_threads(
    tmp_path: Path, noted: list[str]
) -> None:
    with in_process(tmp_path) as service:
        body = _body(200)
        assert service.post("/v1/datasets", content=body, headers=NPZ).status_code == 201
        answer = service.post("/v1/calibrators/a/fits", content=_body(300), headers=NPZ)
        assert answer.status_code == 202
        upload = service.post("/v1/datasets?upload=parts").json()["id"]
        answer = service.put(f"/v1/datasets/{upload}/parts/1", content=body)
        assert answer.status_code == 200
        assert not noted
        assert not list((tmp_path / "uploads").iterdir())


def test_a_body_that_was_closed_leaves_no_file_behind(tmp_path: Path) -> None:
    body = Spool(tmp_path)
    with body.body("a") as arrived:
        arrived.write(b"first")
    with pytest.raises(ValueError, match="closed"):
        arrived.write(b"by a call that was abandoned")
    assert not list(tmp_path.iterdir())


def test_the_file_is_deleted_if_the_request_is_cancelled(tmp_path: Path) -> None:
    async def cancelled() -> None:
        async with Spool(tmp_path).receive("a") as arrived:
            await asyncio.to_thread(arrived.write, b"first")
            assert list(tmp_path.iterdir())
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert not list(tmp_path.iterdir())
