"""Damaged, forged or foreign backups are refused before anything is written."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from helpers.backups import Kept, command, refusal

from service.maintenance.archive_file import MANIFEST, MANIFEST_HASH, BackupWriter


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


def test_a_flipped_bit_is_detected_or_does_not_matter(kept: Kept, tmp_path: Path) -> None:
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
        # a byte that is never read, such as the last one of a checksum field
        restored = (tmp_path / "new" / "calibrd.db").read_bytes()
        with tarfile.open(kept.file, "r:") as tar:
            assert restored == tar.extractfile("calibrd.db").read()  # type: ignore[union-attr]
        shutil.rmtree(tmp_path / "new")
    assert seen > 45  # the other bits are in padding or in bytes that are never read


def forged(
    kept: Kept, file: Path, forge: Callable[[dict[str, bytes], dict[str, Any]], None]
) -> None:
    """Return a backup with other members and a manifest that matches them."""
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


def test_a_database_that_contradicts_the_manifest_is_refused(kept: Kept, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE others (id TEXT)")
    foreign = (tmp_path / "other.db").read_bytes()
    (tmp_path / "other.db").unlink()
    for content, said in (
        (b"junk" * 1000, "the database is damaged: file is not a database"),
        (foreign, "the database in the backup has schema None, but the manifest states "),
        (b"", "the database in the backup has schema None, but the manifest states "),
    ):

        def forge(
            members: dict[str, bytes], _manifest: dict[str, Any], content: bytes = content
        ) -> None:
            members["calibrd.db"] = content

        forged(kept, tmp_path / "x.tar", forge)
        assert said in refused_without_a_trace(tmp_path / "x.tar", tmp_path)
    forged(kept, tmp_path / "x.tar", lambda _, manifest: manifest.update(schema="0001"))
    assert "the manifest states 0001" in refused_without_a_trace(tmp_path / "x.tar", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar"]


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
        ("format", 2, "has format 2, but this program reads format 1"),
        ("schema", "9999", "whose schema 9999 is unknown to this version"),
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
