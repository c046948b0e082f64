"""No workspace can fill the disk: a quota, a reserve for the database, shares for uploads."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.dashboard_pages import HTML
from helpers.live_service import NPZ, Local, in_process, running, sample
from helpers.registration import registration, temperature_registration
from helpers.training_clients import history, open_run, open_shared, post, seen
from sqlalchemy import event, text

from calibrators import CalibrationSet
from calibrators.adafocal import AdaFocalState
from calibrators.fitting.evaluation import fit_and_judge
from calibrators.methods.temperature import TemperatureScaling
from service.access.keys import DEFAULT_WORKSPACE, workspace_named
from service.access.repository import DATASET_ROOM
from service.datasets.spool import Spool
from service.errors import NoSpace
from service.runs.service import BIN_BYTES, DECISION_BYTES, RANK_BYTES
from service.storage.repository import FILE_BYTES, ROW_BYTES


def body(seed: int, rows: int = 500) -> bytes:
    rng = np.random.default_rng(seed)
    file = io.BytesIO()
    np.savez(file, logits=rng.normal(size=(rows, 4)), labels=rng.integers(4, size=rows))
    return file.getvalue()


def sent(service: Local, seed: int) -> Any:
    return service.post("/v1/datasets", content=body(seed), headers=NPZ)


def test_a_workspace_has_a_storage_limit(tmp_path: Path) -> None:
    size = len(body(0)) + DATASET_ROOM
    with in_process(tmp_path, max_workspace_bytes=3 * size + 100) as service:
        kept = [sent(service, seed).json()["id"] for seed in range(3)]
        refused = sent(service, 3)
        assert (refused.status_code, refused.json()["code"]) == (413, "workspace_full")
        assert refused.json()["limit"] == 3 * size + 100
        assert sent(service, 0).status_code == 200  # stored bytes take no additional space
        map_of = temperature_registration(2.0, k=3)
        answer = service.post("/v1/calibrators/a/versions", json=map_of)
        assert answer.json()["code"] == "workspace_full"
        opened = service.post("/v1/datasets?upload=parts").json()["id"]
        part = service.put(f"/v1/datasets/{opened}/parts/1", content=b"a" * 1000)
        assert part.json()["code"] == "workspace_full"
        assert service.delete(f"/v1/datasets/{opened}").status_code == 204
        assert service.delete(f"/v1/datasets/{kept[0]}").status_code == 204
        assert sent(service, 3).status_code == 201


def test_moves_of_an_alias_count_and_a_full_workspace_may_still_promote(tmp_path: Path) -> None:
    with in_process(tmp_path, max_workspace_bytes=40_000) as service:
        for temperature in (2.0, 3.0):
            map_of = temperature_registration(temperature, k=3)
            assert service.post("/v1/calibrators/a/versions", json=map_of).status_code == 201
        moves, reason = 0, "\N{GRINNING FACE}" * 1000
        while moves < 50:
            move = {"version": 1 + moves % 2, "reason": reason, "force": True}
            answer = service.put("/v1/calibrators/a/aliases/production", json=move)
            if answer.status_code != 200:
                break
            moves += 1
        assert answer.json()["code"] == "workspace_full"
        assert 44_000 < stored_bytes(service) < 60_000
        assert service.post("/v1/datasets", content=body(1), headers=NPZ).status_code == 413
        rollback = service.post("/v1/calibrators/a/aliases/production/rollback")
        assert rollback.status_code == 200


def test_reasons_of_rollbacks_cannot_exceed_the_quota(tmp_path: Path) -> None:
    """They used to be stored in any number: 38 times the quota."""
    room, reason = 300_000, "\N{GRINNING FACE}" * 1000
    path = "/v1/calibrators/a/aliases/production"
    with in_process(tmp_path, max_workspace_bytes=room) as service:
        for temperature in (1.5, 2.0):
            body = temperature_registration(temperature, k=3)
            assert service.post("/v1/calibrators/a/versions", json=body).status_code == 201
        codes, version = [200], 2
        while codes[-1] == 200:
            version = 3 - version
            move = {"version": version, "force": True, "reason": "test"}
            codes.append(service.put(path, json=move).status_code)
        assert codes[-1] == 413
        full = stored_bytes(service)
        long = [service.post(f"{path}/rollback", json={"reason": reason}) for _ in range(10)]
        assert long[-1].status_code == 413
        assert service.post(f"{path}/rollback").status_code == 200  # always possible
        assert stored_bytes(service) < full + 20_000


def test_maps_and_their_descriptions_count(tmp_path: Path) -> None:
    most = 50_000
    with in_process(tmp_path, max_workspace_bytes=most) as service:
        answers = [
            service.post(
                f"/v1/calibrators/c{n}/versions", json=temperature_registration(1.0 + n, k=3)
            )
            for n in range(20)
        ]
        size = answers[0].json()["map_bytes"] + FILE_BYTES
        kept = [one.status_code for one in answers].count(201)
        assert most // (2 * size) <= kept <= most // size


def test_judged_rows_and_reports_count(tmp_path: Path) -> None:
    data = CalibrationSet(*sample(2000, 5))
    made = fit_and_judge(TemperatureScaling(), data)
    facts = {
        "report": made.report.to_dict(),
        "judged_rows": base64.b64encode(made.rows.dump()).decode(),
    }
    with in_process(tmp_path) as service:
        answer = service.post("/v1/calibrators/a/versions", json=registration(made.map, **facts))
        assert answer.status_code == 201, answer.text
        parts = service.app.state.parts
        with parts.database.read() as store:
            stored = store.keys.stored_bytes(workspace_named(store, DEFAULT_WORKSPACE).id)
        blobs = answer.json()["map_bytes"] + len(made.rows.dump())
        assert blobs + 1000 < stored < blobs + 200_000


def test_statistics_of_runs_count_until_they_are_merged(tmp_path: Path) -> None:
    size = len(seen(0, 20_000).to_bytes())
    decisions = 3 * (DECISION_BYTES + BIN_BYTES * 5 + RANK_BYTES * 2)
    with in_process(tmp_path, max_workspace_bytes=3 * size + decisions + 2000) as service:
        open_shared(service, ranks=2)
        answers = [post(service, "job", "a", step, seen(0, 20_000)) for step in (1, 2, 3)]
        assert {one.status_code for one in answers[:2]} <= {200, 202}
        assert 3 * size < stored_bytes(service) - decisions < 3 * size + 2000
        refused = post(service, "job", "a", 4, seen(0, 20_000))
        assert (refused.status_code, refused.json()["code"]) == (413, "workspace_full")
    with in_process(tmp_path) as service:
        assert post(service, "job", "a", 1, seen(1, 20_000), rank=1).status_code == 200
        assert 2 * size < stored_bytes(service) - 2 * decisions // 3 < 3 * size


def test_states_that_wait_for_a_step_count_until_it_is_decided(tmp_path: Path) -> None:
    passes = [seen(1, 100), seen(2, 100)]
    first = AdaFocalState.initial(bins=100).update(passes[0])
    second = first.update(passes[1])
    with in_process(tmp_path) as service:
        open_run(service, "job", session="a", settings={"bins": 100}, decides="trainer")
        stored = [stored_bytes(service)]
        for step, state in ((2, second), (1, first)):
            sent = post(service, "job", "a", step, passes[step - 1], state=state)
            assert sent.status_code in (200, 202), sent.text
            stored.append(stored_bytes(service))
        waiting = len(passes[1].to_bytes()) + len(json.dumps(second.to_dict()))
        decision = stored[1] - stored[0] - ROW_BYTES - waiting  # reserved until it is written
        with service.app.state.parts.database.read() as store:
            written = store.session.execute(text("SELECT * FROM run_steps")).mappings().all()
        largest = max(sum(len(str(value)) for value in row.values()) for row in written)
        assert largest < decision < 3 * largest
        assert stored[2] < stored[0] + 2 * decision
        with service.app.state.parts.database.read() as store:
            rows = store.session.execute(text("SELECT statistics, claimed FROM run_statistics"))
            assert [row for row in rows if row != (None, None)] == []
        assert len(history(service, "job")) == 2


def test_decisions_of_steps_count_before_they_are_written(tmp_path: Path) -> None:
    """Small statistics used to wait below the quota, and their decisions to exceed it fivefold."""
    room = 2_000_000
    with in_process(tmp_path, max_workspace_bytes=room) as service:
        open_run(service, "job", session="a", settings={"bins": 1000}, decides="service")
        codes = [post(service, "job", "a", step, seen(step)).status_code for step in range(2, 52)]
        assert codes.count(200) in range(5, 20)
        assert codes[-1] == 413
        before = stored_bytes(service)
        assert post(service, "job", "a", 1, seen(1)).status_code in (200, 202, 413)
        assert stored_bytes(service) <= max(before, room)


def test_notes_of_fits_and_runs_count(tmp_path: Path) -> None:
    notes = {"description": "\N{GRINNING FACE}" * 4000}
    size = len(json.dumps(notes["description"]))
    with in_process(tmp_path) as service:
        order = {"dataset": sent(service, 0).json()["id"], "method": "temperature", **notes}
        assert service.post("/v1/calibrators/a/fits", json=order).status_code == 202
        fits = stored_bytes(service)
        assert fits > size
        asked = {"name": "job", "kind": "monitor"}
        assert service.post("/v1/runs", json={**asked, **notes}).status_code == 201
        with_run = stored_bytes(service)
        assert with_run > fits + size
        assert service.patch("/v1/runs/job", json={"description": ""}).status_code == 200
        assert stored_bytes(service) < with_run - size + 100


def test_a_page_of_runs_with_long_notes_is_short(tmp_path: Path) -> None:
    notes = {"description": "\N{GRINNING FACE}" * 4000}
    with in_process(tmp_path) as service:
        for number in range(20):
            asked = {"name": f"job{number}", "kind": "monitor", **notes}
            assert service.post("/v1/runs", json=asked).status_code == 201
        names, cursor = [], ""
        while cursor is not None:
            page = service.get(f"/v1/runs?limit=200{cursor and '&cursor=' + cursor}")
            assert len(page.content) < 1 << 19
            names += [one["name"] for one in page.json()["items"]]
            cursor = page.json()["next"]
        assert len(set(names)) == len(names) == 20


def test_states_of_sessions_count(tmp_path: Path) -> None:
    with in_process(tmp_path, max_workspace_bytes=20_000) as service:
        state = AdaFocalState.initial(bins=100).to_dict()
        statuses = []
        for number in range(20):
            asked = {"settings": {"bins": 100}, "state": state, "session": f"s{number}"}
            statuses.append(service.post("/v1/runs", json={"name": "job", **asked}).status_code)
        assert statuses[0] == 201
        assert statuses[-1] == 413
        assert stored_bytes(service) < 40_000


def test_bytes_sent_again_while_they_are_deleted_leave_no_orphan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_process(tmp_path) as service:
        kept = sent(service, 0).json()["id"]
        blobs = service.app.state.parts.blobs
        write = blobs.put

        def delete_and_write(key: str, content: Any) -> None:
            if kept in key:  # just before the repeated bytes are written
                assert service.delete(f"/v1/datasets/{kept}").status_code == 204
            write(key, content)

        monkeypatch.setattr(blobs, "put", delete_and_write)
        again = sent(service, 0)
        assert again.status_code == 201
        assert [again.json()["id"] in one.key for one in blobs.list()] == [True]


def test_a_fit_whose_maps_have_no_room_fails_and_leaves_nothing(tmp_path: Path) -> None:
    content = body(0)
    quota = str(len(content) + DATASET_ROOM + 100)
    with (
        running(tmp_path, CALIBRD_MAX_WORKSPACE_BYTES=quota) as service,
        service.client() as client,
    ):
        ended = client.post(
            "/v1/calibrators/a/fits?method=temperature&method=identity",
            content=content,
            headers={**NPZ, "Prefer": "wait=60"},
        ).json()
        assert (ended["status"], ended["error"]["code"]) == ("failed", "workspace_full"), ended
        kinds = {path.parent.name for path in (tmp_path / "blobs").rglob("*") if path.is_file()}
        assert not kinds & {"maps", "onnx", "judged"}


def test_small_rows_leave_room_to_delete(small_disk: Path) -> None:
    with in_process(small_disk, max_workspace_bytes=1 << 30) as service:
        kept = sent(service, 0).json()["id"]
        assert service.post("/v1/runs", json={"name": "a", "kind": "monitor"}).status_code == 201
        left = shutil.disk_usage(small_disk).free - (1 << 18)
        (small_disk / "filler").write_bytes(b"a" * left)
        full = service.post("/v1/runs", json={"name": "b", "kind": "monitor"})
        assert full.status_code == 507, full.text
        assert service.delete(f"/v1/datasets/{kept}").status_code == 204


def database_size(service: Local) -> int:
    with service.app.state.parts.database.read() as store:
        pages = store.session.scalar(text("PRAGMA page_count"))
        return int(pages * store.session.scalar(text("PRAGMA page_size")))


def stored_bytes(service: Local) -> int:
    """Return the recorded number of bytes that the workspace's runs take."""
    with service.app.state.parts.database.read() as store:
        return store.keys.stored_bytes(workspace_named(store, DEFAULT_WORKSPACE).id)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_can_be_freed(small_disk: Path) -> None:
    with in_process(small_disk, max_workspace_bytes=1 << 30) as service:
        kept = []
        for seed in range(100):
            answer = service.post("/v1/datasets", content=body(seed, 20_000), headers=NPZ)
            if answer.status_code == 507:
                break
            kept.append(answer.json()["id"])
        assert answer.status_code == 507
        assert len(kept) > 10
        assert service.delete(f"/v1/datasets/{kept[0]}").status_code == 204
        for id in kept[1:6]:
            assert service.delete(f"/v1/datasets/{id}").status_code == 204
        assert sent(service, 1000).status_code == 201


def test_by_default_a_workspace_gets_a_quarter_of_the_disk(small_disk: Path) -> None:
    with in_process(small_disk) as service:
        codes = [
            service.post("/v1/datasets", content=body(seed, 20_000), headers=NPZ)
            for seed in range(20)
        ]
        assert codes[0].status_code == 201
        assert codes[-1].json()["code"] == "workspace_full"
        assert codes[-1].json()["limit"] == 10 << 20


def test_bodies_that_arrive_take_a_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(total=1 << 30, free=100 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    spool = Spool(tmp_path)
    with spool.body("slow") as first, spool.body("slow") as second, spool.body("other") as other:
        first.write(b"a" * (20 << 20))
        with pytest.raises(NoSpace, match="send fewer"):
            second.write(b"a" * (20 << 20))
        other.write(b"a" * (20 << 20))
    with spool.body("slow") as again:
        again.write(b"a" * (20 << 20))


def test_a_reserve_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(total=1 << 40, free=60 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with Spool(tmp_path).body("a") as body, pytest.raises(NoSpace):
        body.write(b"a")


def test_an_array_in_fortran_order_is_not_turned_on_a_disk_that_it_would_fill(
    small_disk: Path,
) -> None:
    file = io.BytesIO()
    logits = np.zeros((1 << 20, 3), np.float32, order="F")
    np.savez_compressed(file, logits=logits, labels=np.zeros(1 << 20, np.uint8))
    with in_process(small_disk) as service:
        refused = service.post("/v1/datasets", content=file.getvalue(), headers=NPZ)
        assert (refused.status_code, refused.json()["code"]) == (507, "no_space")
        assert "send it in C order" in refused.json()["detail"]


def test_small_datasets_count_the_room_of_their_files(tmp_path: Path) -> None:
    with in_process(tmp_path, max_workspace_bytes=5 * DATASET_ROOM) as service:
        codes = [
            service.post(
                "/v1/datasets",
                content=f"logit_0,logit_1,label\n{one},0,1\n",
                headers={"Content-Type": "text/csv"},
            ).status_code
            for one in range(6)
        ]
    assert codes == [201] * 4 + [413] * 2


def test_notes_of_versions_count(tmp_path: Path) -> None:
    url = "/v1/calibrators/a/versions/1"
    with in_process(tmp_path) as service:
        map_of = temperature_registration(2.0, k=3)
        assert service.post("/v1/calibrators/a/versions", json=map_of).status_code == 201
        before = stored_bytes(service)
        for text_of in ("a" * 1000, "b" * 4000, "c" * 10):
            assert service.patch(url, json={"description": text_of}).status_code == 200
            assert stored_bytes(service) - before == len(text_of)
        most = stored_bytes(service) - 1
    with in_process(tmp_path, max_workspace_bytes=most) as full:
        refused = full.patch(url, json={"description": "e"})
        assert (refused.status_code, refused.json()["code"]) == (413, "workspace_full")
        page = "/calibrators/a/versions/1"
        seen_on = re.search('name="seen" value="([0-9a-f]+)"', full.get(page, headers=HTML).text)
        assert seen_on is not None
        form = {"tags": "a: " + "b" * 100, "description": "", "seen": seen_on[1]}
        refused = full.post(f"{page}/notes", data=form)
        assert (refused.status_code, refused.json()["code"]) == (413, "workspace_full")
        assert full.patch(url, json={"description": ""}).status_code == 200


def test_a_registration_that_fails_in_its_transaction_leaves_no_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_process(tmp_path) as service:
        parts = service.app.state.parts
        put = parts.blobs.put

        def put_while_the_key_is_taken(key: str, content: Any) -> None:
            put(key, content)
            with parts.database.write() as store:
                workspace = workspace_named(store, DEFAULT_WORKSPACE).id
                store.idempotency.keep(workspace, "mine", "0" * 64, {"version": 1})

        monkeypatch.setattr(parts.blobs, "put", put_while_the_key_is_taken)
        map_of = temperature_registration(2.0, k=3)
        key = {"Idempotency-Key": "mine"}
        refused = service.post("/v1/calibrators/a/versions", json=map_of, headers=key)
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_key_reused")
        assert not [one for one in (tmp_path / "blobs").rglob("*") if one.is_file()]


def test_small_maps_count_the_blocks_of_their_files(tmp_path: Path) -> None:
    with in_process(tmp_path) as service:
        for number in range(20):
            map_of = temperature_registration(1.0 + number, k=3)
            service.post("/v1/calibrators/a/versions", json=map_of).raise_for_status()
        files = [one for one in (tmp_path / "blobs").rglob("*") if one.is_file()]
        assert len(files) == 20
        assert stored_bytes(service) >= sum(512 * one.stat().st_blocks for one in files)


def test_rows_of_cancelled_fits_count_with_their_indexes(tmp_path: Path) -> None:
    with in_process(tmp_path, database_url="") as service:
        order = {"dataset": sent(service, 0).json()["id"], "method": "temperature"}
        sizes = []
        for number in range(600):
            key = {"Idempotency-Key": f"{number:03}" * 66}
            made = service.post("/v1/calibrators/a/fits", json=order, headers=key)
            service.delete(f"/v1/fits/{made.json()['id']}").raise_for_status()
            if number % 500 == 99:
                sizes.append((stored_bytes(service), database_size(service)))
        (counted_before, before), (counted, after) = sizes
        assert counted - counted_before > 0.7 * (after - before)


def test_no_write_transaction_sums_what_a_workspace_stores(tmp_path: Path) -> None:
    summed: list[bool] = []

    def note(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "sum(" in statement and "stored_bytes" in statement:
            summed.append(bool(connection.get_execution_options().get("writes")))

    with in_process(tmp_path, max_workspace_bytes=1 << 20) as service:
        event.listen(service.app.state.parts.database.engine, "before_cursor_execute", note)
        opened = service.post("/v1/datasets?upload=parts").json()["id"]
        for number in (1, 2):
            part = service.put(f"/v1/datasets/{opened}/parts/{number}", content=b"a" * 100)
            assert part.status_code == 200
        assert sent(service, 0).status_code == 201
        map_of = temperature_registration(2.0, k=3)
        assert service.post("/v1/calibrators/a/versions", json=map_of).status_code == 201
        notes = {"description": "a"}
        assert service.patch("/v1/calibrators/a/versions/1", json=notes).status_code == 200
        move = {"version": 1, "reason": "a", "force": True}
        assert service.put("/v1/calibrators/a/aliases/p", json=move).status_code == 200
        open_shared(service)
    assert len(summed) >= 8
    assert not any(summed)


def test_the_sum_of_a_quota_reads_indexes_alone(tmp_path: Path) -> None:
    plans: list[str] = []
    with in_process(tmp_path) as service:
        database = service.app.state.parts.database
        with database.read() as store:
            workspace = workspace_named(store, DEFAULT_WORKSPACE).id

        def explain(connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
            if statement.startswith("SELECT sum("):
                found = connection.connection.driver_connection.execute(
                    f"EXPLAIN QUERY PLAN {statement}", values
                )
                plans.extend(str(row[-1]) for row in found)

        event.listen(database.engine, "before_cursor_execute", explain)
        with database.read() as store:
            store.keys.stored_bytes(workspace)
    assert len(plans) == 3
    assert all("COVERING INDEX" in plan for plan in plans), plans
