"""Backup and restore: content, misuse, damaged blobs, a full disk, and blobs in S3."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from helpers.backends import BUCKET, Fleet
from helpers.backups import Kept, command, filled, let_in, predicted, refusal
from helpers.commands import as_a_plain_user
from helpers.http_calls import good
from helpers.live_service import NPZ, ROOT, Local, in_process, npz, sample
from helpers.training_clients import SETTINGS, history, open_shared, post, seen
from helpers.workspace_contents import ALIAS, CALIBRATOR

from calibrators.adafocal import AdaFocalState
from service.maintenance import backup
from service.maintenance.archive_file import MANIFEST
from service.storage.blob_keys import BlobKind

BACKUP = (sys.executable, "-m", "service", "backup")


def test_a_restored_service_has_all_that_was_backed_up(kept: Kept, tmp_path: Path) -> None:
    done = command("restore", kept.file, "--data-dir", tmp_path / "new")
    assert done.stdout.startswith("restored 2 versions, 2 datasets, ")
    with in_process(tmp_path / "new") as local:
        assert local.get("/v1/calibrators").json()["code"] == "key_required"
        let_in(local, kept.key)
        assert predicted(local, ALIAS) == predicted(local, 1) == kept.answer
        history = local.get(f"/v1/calibrators/{CALIBRATOR}/aliases/{ALIAS}/history").json()
        assert [move["to_version"] for move in history["items"]] == [2]
        upload = local.get(f"/v1/datasets/{kept.things.upload}").json()
        assert [part["number"] for part in upload["parts"]] == [1]
        assert local.get(f"/v1/fits/{kept.things.fit}").json()["status"] == "queued"
        assert kept.things.key in [key["id"] for key in local.get("/v1/keys").json()["items"]]
        blobs = {blob.key for blob in local.app.state.parts.blobs.list()}
    files = (path for path in (kept.folder / "blobs").rglob("*") if path.is_file())
    assert blobs == {str(path.relative_to(kept.folder / "blobs")) for path in files}


def test_a_restored_run_continues_where_it_was(tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    with in_process(tmp_path / "data") as local:
        open_shared(local)
        for step, rank in ((1, 0), (1, 1), (2, 0)):
            good(post(local, "job", "a", step, seen(rank), rank=rank))
        steps, run = history(local, "job"), good(local.get("/v1/runs/job"))
    assert command("backup", file, "--data-dir", tmp_path / "data").returncode == 0
    assert command("restore", file, "--data-dir", tmp_path / "new").returncode == 0
    with in_process(tmp_path / "new") as local:
        assert (history(local, "job"), good(local.get("/v1/runs/job"))) == (steps, run)
        decided = good(post(local, "job", "a", 2, seen(1), rank=1))
    merged = seen(0) + seen(1)
    expected = AdaFocalState.begin(SETTINGS).update(merged).update(merged)
    assert decided["state"] == expected.to_dict()
    assert [one["metrics"]["rows"] for one in steps] == [400]


def test_the_file_is_plain_tar_with_a_manifest(kept: Kept) -> None:
    with tarfile.open(kept.file, "r:") as tar:
        manifest = json.load(tar.extractfile(MANIFEST))  # type: ignore[arg-type]
        for member in manifest["members"]:
            content = tar.extractfile(member["name"]).read()  # type: ignore[union-attr]
            assert len(content) == member["bytes"]
            assert hashlib.sha256(content).hexdigest() == member["sha256"]
    assert (manifest["format"], manifest["damaged"]) == (1, [])
    expected = {BlobKind.MAP: 2, BlobKind.DATASET: 2, BlobKind.PART: 1, BlobKind.JUDGED: 2}
    assert manifest["counts"] == expected


def test_a_backup_is_private_and_replaces_files_only_by_force(kept: Kept, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    file.write_text("something else")
    assert "--force" in refusal(command("backup", file, "--data-dir", kept.folder))
    assert file.read_text() == "something else"
    done = [*BACKUP, str(file), "--force", "--data-dir", str(kept.folder)]
    subprocess.run(done, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]
    assert command("restore", file, "--data-dir", tmp_path / "new").returncode == 0


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "lost link"])
def test_only_a_plain_file_is_ever_replaced(kept: Kept, tmp_path: Path, kind: str) -> None:
    target, other = tmp_path / "target", tmp_path / "other"
    match kind:
        case "folder":
            target.mkdir()
        case "pipe":
            os.mkfifo(target)
        case "link":
            other.write_text("something else")
            target.symlink_to(other)
        case "lost link":
            target.symlink_to(other)
    before = target.lstat()
    said = refusal(command("backup", target, "--force", "--data-dir", kept.folder))
    assert (f"{target} is a folder" if kind == "folder" else "is never replaced") in said
    assert target.lstat() == before
    assert kind != "link" or other.read_text() == "something else"


def test_a_damaged_database_is_reported_in_one_line(kept: Kept, tmp_path: Path) -> None:
    shutil.copytree(kept.folder, tmp_path / "data")
    database = tmp_path / "data" / "calibrd.db"
    whole = database.read_bytes()
    for damaged in (b"x" * 100 + whole[100:], whole[: len(whole) // 2]):
        database.write_bytes(damaged)
        asked = ("backup", tmp_path / "backup.tar", "--data-dir", tmp_path / "data")
        assert "the database is damaged" in refusal(command(*asked))
        assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("left", ["nothing", "changes and their index", "changes"])
def test_a_read_only_directory_is_backed_up_if_possible(
    kept: Kept, tmp_path: Path, left: str
) -> None:
    data, file = tmp_path / "data", tmp_path / "backup.tar"
    shutil.copytree(kept.folder, data)
    with closing(sqlite3.connect(data / "calibrd.db")) as writer:
        if left != "nothing":
            writer.execute("UPDATE calibrators SET last_version = last_version")
            writer.commit()
            if left == "changes":
                (data / "calibrd.db-shm").unlink()
        here = [data, *data.rglob("*")]
        for path in here:
            path.chmod(0o555 if path.is_dir() else 0o444)
        done = subprocess.run(
            [*BACKUP, str(file), "--data-dir", str(data)],
            cwd=ROOT,
            preexec_fn=as_a_plain_user,
            capture_output=True,
            text=True,
            timeout=60,
        )
        for path in here:
            path.chmod(0o755)
    if left == "changes":
        assert "the database cannot be copied (" in refusal(done)
        assert not file.exists()
    else:
        assert done.returncode == 0, done.stderr
        assert command("restore", file, "--data-dir", tmp_path / "new").returncode == 0


@pytest.mark.parametrize(
    ("verb", "flags", "said"),
    [
        ("backup", ("--data-dir", "{tmp}/none"), "there is no database at "),
        ("backup", ("--data-dir", "{kept}", "{tmp}/none/backup.tar"), "does not exist: create it"),
        ("backup", ("--database-url", "postgresql://127.0.0.1:1/x"), "pg_dump"),
        ("restore", ("--database-url", "postgresql://127.0.0.1:1/x"), "pg_dump"),
        ("restore", ("--data-dir", "{kept}"), "is not empty (blobs, calibrd.db"),
        ("restore", ("--data-dir", "{tmp}/new", "{tmp}/none.tar"), "No such file"),
        ("restore", ("--data-dir", "{kept}/calibrd.db"), "is a file"),
    ],
)
def test_misuse_is_reported_in_one_line(
    kept: Kept, tmp_path: Path, verb: str, flags: tuple[str, ...], said: str
) -> None:
    given = [flag.format(tmp=tmp_path, kept=kept.folder) for flag in flags]
    if not given[-1].endswith(".tar"):
        given.append(str(kept.file if verb == "restore" else tmp_path / "backup.tar"))
    assert said in refusal(command(verb, *given))
    assert list(tmp_path.iterdir()) == []


def test_files_of_another_database_are_not_mistaken_for_changes(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "other.db-wal").write_bytes(b"changes")
    url = f"--database-url=sqlite:///{tmp_path}/other.db"
    said = refusal(command("restore", kept.file, "--data-dir", tmp_path / "new", url))
    assert "is not empty (other.db-wal)" in said
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "other.db-wal").touch()
    said = refusal(command("restore", kept.file, "--data-dir", tmp_path / "new", url))
    assert "is not empty (other.db-wal)" in said


@pytest.fixture
def served(kept: Kept, tmp_path: Path) -> Iterator[Local]:
    """Run the same service in another folder."""
    command("restore", kept.file, "--data-dir", tmp_path / "data")
    with in_process(tmp_path / "data") as local:
        let_in(local, kept.key)
        yield local


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_damaged_map_is_named_and_the_rest_can_be_kept(
    served: Local, kept: Kept, tmp_path: Path, damage: str
) -> None:
    version = served.get(f"/v1/calibrators/{CALIBRATOR}/versions/2").json()
    keys = [blob.key for blob in served.app.state.parts.blobs.list()]
    # both versions are of the same bytes, and each has its own
    mine = [key for key in keys if version["map_sha256"] in key]
    assert len(mine) == 2
    with served.app.state.parts.database.read() as store:
        row = store.calibrators.version(
            store.calibrators.named(store.keys.workspace_named("default").id, CALIBRATOR).id, 2
        )
    (path,) = (tmp_path / "data/blobs" / key for key in mine if row.id in key)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink() if damage == "gone" else path.write_bytes(content)
    file, data = tmp_path / "backup.tar", ("--data-dir", tmp_path / "data")
    line = refusal(command("backup", file, *data))
    assert f"the map of {CALIBRATOR}@2: " in line
    assert "--keep-going" in line
    assert not list(tmp_path.glob("*.tar*"))
    done = command("backup", file, *data, "--keep-going")
    assert done.returncode == 0
    assert done.stdout.startswith("backed up 1 versions, 2 datasets, ")
    assert f"skipped: the map of {CALIBRATOR}@2: " in done.stderr
    again = command("restore", file, "--data-dir", tmp_path / "new")
    assert f"the map of {CALIBRATOR}@2" in again.stderr
    with in_process(tmp_path / "new") as local:
        let_in(local, kept.key)
        assert predicted(local, 1)


def test_one_blob_is_taken_out_of_the_file_as_the_guide_says(
    served: Local, kept: Kept, tmp_path: Path
) -> None:
    data = ("--data-dir", tmp_path / "data")
    assert command("doctor", *data).returncode == 0
    lost = next(blob.key for blob in served.app.state.parts.blobs.list() if "/maps/" in blob.key)
    (tmp_path / "data/blobs" / lost).unlink()
    done = command("doctor", *data)
    assert (done.returncode, f"restore the blob {lost} from a backup" in done.stdout) == (1, True)
    (line,) = re.findall(r"^tar .*$", (ROOT / "docs/how-to/back-up.md").read_text(), re.M)
    given = {"calibrd-2026-01-05.tar": kept.file, "calibrd-data": tmp_path / "data", "KEY": lost}
    for word, meant in given.items():
        line = line.replace(word, str(meant))
    subprocess.run(line.split(), check=True)
    assert command("doctor", *data).returncode == 0


def test_a_dataset_deleted_meanwhile_is_not_damage(
    served: Local, kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = served.post("/v1/datasets", content=npz(*sample(50)), headers=NPZ).json()["id"]
    really, rounds = backup.copy_database, []

    def copy_then_delete(file: Path, target: Path) -> None:
        really(file, target)
        rounds.append(served.delete(f"/v1/datasets/{made}").status_code)

    monkeypatch.setattr(backup, "copy_database", copy_then_delete)
    done = command("backup", tmp_path / "backup.tar", "--data-dir", tmp_path / "data")
    assert (done.returncode, done.stderr) == (0, "")
    assert rounds == [204, 404]
    command("restore", tmp_path / "backup.tar", "--data-dir", tmp_path / "new")
    with in_process(tmp_path / "new") as local:
        let_in(local, kept.key)
        assert made not in [one["id"] for one in local.get("/v1/datasets").json()["items"]]


@pytest.mark.parametrize("room", ["database", "blobs"])
def test_a_full_disk_leaves_no_partial_file(kept: Kept, tmp_path: Path, room: str) -> None:
    database = (kept.folder / "calibrd.db").stat().st_size
    limit = database // 2 if room == "database" else database + 300_000
    assert kept.file.stat().st_size > limit
    done = subprocess.run(
        [*BACKUP, str(tmp_path / "backup.tar"), "--data-dir", str(kept.folder)],
        cwd=ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    line = refusal(done)
    assert ("cannot be copied" if room == "database" else "File too large") in line
    assert list(tmp_path.iterdir()) == []


def test_blobs_in_s3_are_backed_up_and_restored(shared_fleet: Fleet, tmp_path: Path) -> None:
    place = f"s3://{BUCKET}/backup-{tmp_path.name}"
    with in_process(tmp_path / "data", blobs_url=f"{place}/old") as local:
        things, key, answer = filled(local)
    where = ("--data-dir", tmp_path / "data", "--blobs-url", f"{place}/old")
    done = command("backup", tmp_path / "backup.tar", *where)
    assert done.returncode == 0, done.stderr
    where = ("--data-dir", tmp_path / "new", "--blobs-url", f"{place}/new")
    done = command("restore", tmp_path / "backup.tar", *where)
    assert done.returncode == 0, done.stderr
    with in_process(tmp_path / "new", blobs_url=f"{place}/new") as local:
        let_in(local, key)
        assert predicted(local, 1) == answer
        upload = local.get(f"/v1/datasets/{things.upload}").json()
        assert [part["number"] for part in upload["parts"]] == [1]
