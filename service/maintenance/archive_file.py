"""The backup file format: a tar of the database and all blobs, with a manifest at the end."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from service.errors import Invalid

FORMAT = 1
DATABASE = "calibrd.db"
MANIFEST, MANIFEST_HASH = "manifest.json", "manifest.json.sha256"
BLOBS = "blobs/"
BLOCK = tarfile.BLOCKSIZE
PIECE = 4 << 20
_NAME = re.compile(rf"{re.escape(DATABASE)}|{BLOBS}\w[\w.-]*(/\w[\w.-]*)+", re.ASCII)


@dataclass(frozen=True)
class BackupMember:
    """A file in a backup."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The contents and origin of a backup; ``damaged`` lists what could not be backed up."""

    schema: str
    calibrd: str
    created_at: float
    counts: dict[str, int]
    members: list[BackupMember]
    damaged: list[str] = field(default_factory=list)
    format: int = FORMAT

    @property
    def bytes(self) -> int:
        """The total size of all members."""
        return sum(member.bytes for member in self.members)


class BackupWriter:
    """A writer of backup files; a member that cannot be read completely is removed again."""

    def __init__(self, file: IO[bytes], created_at: float) -> None:
        self._file = file
        self._created_at = created_at
        self.members: list[BackupMember] = []

    def add(self, name: str, pieces: Iterable[bytes]) -> None:
        """Add a member; errors raised by ``pieces`` propagate."""
        info = tarfile.TarInfo(name)
        info.mode, info.mtime = 0o600, int(self._created_at)
        start = self._file.tell()
        # the header has a fixed size: reserve space for it until the member's size is known
        self._file.write(bytes(len(info.tobuf(tarfile.GNU_FORMAT))))
        digest = hashlib.sha256()
        try:
            for piece in pieces:
                digest.update(piece)
                info.size += self._file.write(piece)
        except BaseException:
            self._file.seek(start)
            self._file.truncate()
            raise
        end = self._file.seek(self._file.tell() + -info.size % BLOCK)
        self._file.seek(start)
        self._file.write(info.tobuf(tarfile.GNU_FORMAT))
        self._file.seek(end)
        self.members.append(BackupMember(name, info.size, digest.hexdigest()))

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest and the end-of-archive marker."""
        text = json.dumps(asdict(manifest), indent=1).encode()
        self.add(MANIFEST, [text])
        self.add(MANIFEST_HASH, [hashlib.sha256(text).hexdigest().encode()])
        self._file.write(bytes(2 * BLOCK))


class BackupReader:
    """A backup whose manifest has been verified; ``check`` verifies everything else."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        found = tar.getmembers()
        self._infos = {info.name: info for info in found}
        if len(self._infos) != len(found):
            raise _not_a_backup("it contains two files with the same name")
        self.manifest = self._manifest()
        named = {member.name for member in self.manifest.members}
        if named != self._infos.keys() - {MANIFEST, MANIFEST_HASH}:
            raise _not_a_backup("its files do not match its manifest")
        for name in named:
            if not _NAME.fullmatch(name) or not self._infos[name].isreg():
                raise _not_a_backup(f"it contains an unexpected file {name[:200]!r}")

    @property
    def blobs(self) -> Iterator[str]:
        """The keys of all blobs."""
        for member in self.manifest.members:
            if member.name.startswith(BLOBS):
                yield member.name.removeprefix(BLOBS)

    def blob(self, key: str) -> IO[bytes]:
        """Open a blob for reading."""
        return self._open(BLOBS + key)

    def database(self) -> IO[bytes]:
        """Open the database file for reading."""
        return self._open(DATABASE)

    def check(self) -> None:
        """Raise Invalid unless every member has the size and SHA-256 in the manifest."""
        for member in self.manifest.members:
            with self._open(member.name) as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
            if (self._infos[member.name].size, sha256) != (member.bytes, member.sha256):
                raise _damaged(f"{member.name} does not match the manifest")

    def _manifest(self) -> Manifest:
        if not {MANIFEST, MANIFEST_HASH, DATABASE} <= self._infos.keys():
            raise _not_a_backup("it has no manifest or no database; it may be truncated")
        text = self._open(MANIFEST).read()
        if hashlib.sha256(text).hexdigest().encode() != self._open(MANIFEST_HASH).read():
            raise _damaged("its manifest does not match its checksum")
        try:
            return _parsed(json.loads(text))
        except (ValueError, TypeError, KeyError) as error:
            raise _not_a_backup("its manifest cannot be read") from error

    def _open(self, name: str) -> IO[bytes]:
        file = self._tar.extractfile(self._infos[name])
        if file is None:
            raise _not_a_backup(f"{name} is not a regular file")
        return file


@contextmanager
def reading(path: Path) -> Iterator[BackupReader]:
    """Open a backup for reading."""
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            yield BackupReader(tar)
    except (tarfile.TarError, EOFError) as error:
        raise _not_a_backup("it is not a tar file, or it is incomplete") from error
    except OSError as error:
        raise Invalid("cannot_read", f"cannot read {path} ({error.strerror})") from error


def pieces_of(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks."""
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece


def _parsed(document: dict[str, Any]) -> Manifest:
    format = document["format"]
    if format != FORMAT:
        raise Invalid(
            "unknown_format",
            f"the backup has format {format}, but this program reads format {FORMAT}: "
            f"restore it with calibrd {document.get('calibrd')}",
        )
    members = [BackupMember(**member) for member in document.pop("members")]
    return Manifest(members=members, **document)


def _not_a_backup(why: str) -> Invalid:
    return Invalid("not_a_backup", f"the file is not a backup of this service: {why}")


def _damaged(why: str) -> Invalid:
    return Invalid("backup_damaged", f"the backup is damaged: {why}; nothing was restored")
