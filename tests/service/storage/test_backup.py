"""Backup and restore: what is refused, damaged or without room; blobs in S3."""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import resource
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from backends import BUCKET, Fleet
from live_service import NPZ, ROOT, Local, in_process, npz, sample
from one_of_each import ALIAS, CALIBRATOR, Things, fitted_elsewhere, make_one_of_each

from service.command_line import run
from service.core import backup
from service.core.backup_file import MANIFEST, MANIFEST_HASH, BackupWriter
from service.core.blob_keys import BlobKind

BACKUP = (sys.executable, "-m", "service", "backup")
LOGITS = sample(20)[0]


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """What the command does, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run([*map(str, arguments)])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one line in which it refused."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def predicted(client: httpx.Client, ref: object) -> bytes:
    """The bytes that a version answers with."""
    file = io.BytesIO()
    np.save(file, LOGITS)
    answer = client.post(
        f"/v1/calibrators/{CALIBRATOR}@{ref}/predict",
        content=file.getvalue(),
        headers={"Content-Type": "application/x-npy"},
    )
    assert answer.status_code == 200, answer.text
    return answer.content


@dataclass(frozen=True)
class Kept:
    """A data directory that was served, what is in it, and its backup."""

    folder: Path
    file: Path
    things: Things
    key: str
    answer: bytes


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    folder = tmp_path_factory.mktemp("kept")
    with in_process(folder / "data") as local:
        held = filled(local)
    done = command("backup", folder / "backup.tar", "--data-dir", folder / "data")
    assert done.returncode == 0, done.stderr
    assert re.match(r"backed up 2 versions, 2 datasets, \d+ bytes in \d+\.\d s: ", done.stdout)
    return Kept(folder / "data", folder / "backup.tar", *held)


def filled(local: Local) -> tuple[Things, str, bytes]:
    """One of each thing and some more; a key, and what the first version predicts."""
    key = local.post("/v1/keys", json={"name": "first", "scopes": ["admin"]}).json()["token"]
    let_in(local, key)
    answer = local.post(f"/v1/calibrators/{CALIBRATOR}/versions", json=fitted_elsewhere())
    assert answer.status_code == 201
    local.post("/v1/datasets", content=npz(*sample(30_000, 20)), headers=NPZ)
    return make_one_of_each(local), key, predicted(local, 1)


def let_in(local: Local, key: str) -> None:
    local.headers["Authorization"] = f"Bearer {key}"


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
        assert kept.things.key in [key["id"] for key in local.get("/v1/keys").json()]
        blobs = {blob.key for blob in local.app.state.parts.blobs.list()}
    files = (path for path in (kept.folder / "blobs").rglob("*") if path.is_file())
    assert blobs == {str(path.relative_to(kept.folder / "blobs")) for path in files}


def test_the_file_is_plain_tar_with_a_manifest(kept: Kept) -> None:
    with tarfile.open(kept.file, "r:") as tar:
        manifest = json.load(tar.extractfile(MANIFEST))  # type: ignore[arg-type]
        for member in manifest["members"]:
            content = tar.extractfile(member["name"]).read()  # type: ignore[union-attr]
            assert len(content) == member["bytes"]
            assert hashlib.sha256(content).hexdigest() == member["sha256"]
    assert (manifest["format"], manifest["damaged"]) == (1, [])
    assert manifest["counts"] == {BlobKind.MAP: 2, BlobKind.DATASET: 2, BlobKind.PART: 1}


def test_a_backup_is_private_and_replaces_nothing_unasked(kept: Kept, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    file.write_text("something else")
    assert "--force" in refusal(command("backup", file, "--data-dir", kept.folder))
    assert file.read_text() == "something else"
    done = [*BACKUP, str(file), "--force", "--data-dir", str(kept.folder)]
    subprocess.run(done, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]
    assert command("restore", file, "--data-dir", tmp_path / "new").returncode == 0


@pytest.mark.parametrize(
    ("verb", "flags", "said"),
    [
        ("backup", ("--data-dir", "{tmp}/none"), "there is no database at "),
        ("backup", ("--data-dir", "{kept}", "{tmp}/none/backup.tar"), "no folder "),
        ("backup", ("--database-url", "postgresql://127.0.0.1:1/x"), "pg_dump"),
        ("restore", ("--database-url", "postgresql://127.0.0.1:1/x"), "pg_dump"),
        ("restore", ("--data-dir", "{kept}"), "is not empty (blobs, calibrd.db"),
        ("restore", ("--data-dir", "{tmp}/new", "{tmp}/none.tar"), "No such file"),
        ("restore", ("--data-dir", "{kept}/calibrd.db"), "is a file"),
    ],
)
def test_misuse_is_told_in_one_line(
    kept: Kept, tmp_path: Path, verb: str, flags: tuple[str, ...], said: str
) -> None:
    given = [flag.format(tmp=tmp_path, kept=kept.folder) for flag in flags]
    if not given[-1].endswith(".tar"):
        given.append(str(kept.file if verb == "restore" else tmp_path / "backup.tar"))
    assert said in refusal(command(verb, *given))
    assert list(tmp_path.iterdir()) == []


def test_what_another_database_has_left_is_not_taken_for_changes(
    kept: Kept, tmp_path: Path
) -> None:
    (tmp_path / "other.db-wal").write_bytes(b"changes")
    url = f"--database-url=sqlite:///{tmp_path}/other.db"
    said = refusal(command("restore", kept.file, "--data-dir", tmp_path / "new", url))
    assert "is not empty (other.db-wal)" in said


def changed(kept: Kept, file: Path, change: Callable[[bytearray], Any]) -> None:
    content = bytearray(kept.file.read_bytes())
    change(content)
    file.write_bytes(content)


def refused_without_a_trace(file: Path, folder: Path) -> str:
    line = refusal(command("restore", file, "--data-dir", folder / "new"))
    assert not (folder / "new").exists()
    return line


def test_a_truncated_backup_is_refused(kept: Kept, tmp_path: Path) -> None:
    size = kept.file.stat().st_size
    for length in (0, 1, 511, 512, 5000, size // 3, size // 2, size - 3000, size - 2048):

        def cut(content: bytearray, length: int = length) -> None:
            del content[length:]

        changed(kept, tmp_path / "cut.tar", cut)
        refused_without_a_trace(tmp_path / "cut.tar", tmp_path)


def test_a_flipped_bit_is_seen_or_does_not_matter(kept: Kept, tmp_path: Path) -> None:
    with tarfile.open(kept.file, "r:") as tar:
        # headers, contents, and the zeros that fill the last block of each
        infos = [(info.offset, info.offset_data + info.size) for info in tar.getmembers()]
    choose = random.Random(0)  # noqa: S311
    seen = 0
    for turn in range(60):
        start, end = infos[turn % len(infos)]
        at, bit = choose.randrange(start, end), 1 << choose.randrange(8)

        def flip(content: bytearray, at: int = at, bit: int = bit) -> None:
            content[at] ^= bit

        changed(kept, tmp_path / "flipped.tar", flip)
        done = command("restore", tmp_path / "flipped.tar", "--data-dir", tmp_path / "new")
        if done.returncode:
            seen += 1
            assert not (tmp_path / "new").exists()
            continue
        # one that nobody reads, such as the last of a checksum's field
        restored = (tmp_path / "new" / "calibrd.db").read_bytes()
        with tarfile.open(kept.file, "r:") as tar:
            assert restored == tar.extractfile("calibrd.db").read()  # type: ignore[union-attr]
        shutil.rmtree(tmp_path / "new")
    assert seen > 55


def forged(
    kept: Kept, file: Path, forge: Callable[[dict[str, bytes], dict[str, Any]], None]
) -> None:
    """A backup with other members, and a manifest that is right about them."""
    with tarfile.open(kept.file, "r:") as tar:
        members = {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]
    manifest = json.loads(members.pop(MANIFEST))
    del members[MANIFEST_HASH]
    forge(members, manifest)
    with file.open("wb") as target:
        writer = BackupWriter(target, 0.0)
        for name, content in members.items():
            writer.add(name, [content])
        manifest["members"] = [vars(member) for member in writer.members]
        text = json.dumps(manifest).encode()
        writer.add(MANIFEST, [text])
        writer.add(MANIFEST_HASH, [hashlib.sha256(text).hexdigest().encode()])
        target.write(bytes(1024))


def test_a_forged_backup_that_keeps_to_the_rules_is_restored(kept: Kept, tmp_path: Path) -> None:
    forged(kept, tmp_path / "same.tar", lambda members, manifest: None)
    assert command("restore", tmp_path / "same.tar", "--data-dir", tmp_path / "new").returncode == 0


@pytest.mark.parametrize(
    "name", ["../evil", "blobs/../../evil", "/evil", "blobs/a/.hidden", "blobs", "evil", ""]
)
def test_members_of_other_names_are_refused(kept: Kept, tmp_path: Path, name: str) -> None:
    def forge(members: dict[str, bytes], _manifest: dict[str, Any]) -> None:
        members[name] = b"evil"

    forged(kept, tmp_path / "evil.tar", forge)
    assert "not a backup" in refused_without_a_trace(tmp_path / "evil.tar", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["evil.tar"]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("format", 2, "has the format 2, and this program reads 1"),
        ("schema", "9999", "whose schema 9999 this program does not know"),
        ("calibrd", None, None),
        ("surprise", 1, "manifest cannot be read"),
    ],
)
def test_backups_of_other_programs(
    kept: Kept, tmp_path: Path, field: str, value: Any, said: str | None
) -> None:
    forged(kept, tmp_path / "x.tar", lambda _members, manifest: manifest.update({field: value}))
    if said is None:
        done = command("restore", tmp_path / "x.tar", "--data-dir", tmp_path / "new")
        assert done.returncode == 0
    else:
        assert said in refused_without_a_trace(tmp_path / "x.tar", tmp_path)


def test_other_files_are_refused(kept: Kept, tmp_path: Path) -> None:
    text, foreign, links = (tmp_path / name for name in ("text", "foreign.tar", "links.tar"))
    text.write_text("no tar at all" * 1000)
    with tarfile.open(foreign, "w") as tar:
        tar.add(Path(__file__), "README.md")
    shutil.copy(kept.file, links)
    with tarfile.open(links, "a") as tar:
        link = tarfile.TarInfo("blobs/ws_1/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    for file in (text, foreign, links, kept.folder / "calibrd.db"):
        assert "not a backup" in refused_without_a_trace(file, tmp_path)
    assert "cannot read" in refused_without_a_trace(kept.folder, tmp_path)


@pytest.fixture
def served(kept: Kept, tmp_path: Path) -> Iterator[Local]:
    """The same service, elsewhere."""
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
    assert f"the map of version 2 of {CALIBRATOR}: " in line
    assert "--keep-going" in line
    assert not list(tmp_path.glob("*.tar*"))
    done = command("backup", file, *data, "--keep-going")
    assert done.returncode == 0
    assert f"left out: the map of version 2 of {CALIBRATOR}: " in done.stderr
    again = command("restore", file, "--data-dir", tmp_path / "new")
    assert f"the map of version 2 of {CALIBRATOR}" in again.stderr
    with in_process(tmp_path / "new") as local:
        let_in(local, kept.key)
        assert predicted(local, 1)


def test_a_dataset_deleted_meanwhile_is_no_damage(
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
def test_without_room_there_is_no_half_file(kept: Kept, tmp_path: Path, room: str) -> None:
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
