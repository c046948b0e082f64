"""Keys of the blob store.

A key contains the id of the row that refers to it, and every writer uses a new id. Writers
therefore never overwrite each other's blobs, and the key of a deleted blob is never reused.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

WORKSPACE = re.compile(r"ws_[0-9a-f]{20}/")
_KEY = re.compile(
    r"(?P<workspace>ws_[0-9a-f]{20})/(?:"
    r"datasets/(?P<dataset>ds_[0-9a-f]{20})-(?P<dataset_sha256>[0-9a-f]{64})"
    r"|parts/(?P<upload>ds_[0-9a-f]{20})/[0-9]{1,5}-(?P<part_sha256>[0-9a-f]{64})"
    r"|maps/(?P<mapped>ver_[0-9a-f]{20})-(?P<map_sha256>[0-9a-f]{64})"
    r"|onnx/(?P<exported>ver_[0-9a-f]{20})-(?P<onnx_sha256>[0-9a-f]{64})"
    r"|judged/(?P<judged>ver_[0-9a-f]{20})-(?P<judged_sha256>[0-9a-f]{64})"
    r")"
)


class BlobKind(StrEnum):
    """The kind of a blob, which is also the folder in its key."""

    DATASET = "datasets"
    PART = "parts"
    MAP = "maps"
    ONNX = "onnx"
    JUDGED = "judged"


OF_VERSIONS = (BlobKind.MAP, BlobKind.ONNX, BlobKind.JUDGED)


class ParsedKey(NamedTuple):
    """The parts of a key; the id belongs to a dataset or a version."""

    workspace: str
    kind: BlobKind
    id: str
    sha256: str


def dataset_key(workspace: str, dataset: str, sha256: str) -> str:
    """Return the key of a dataset's bytes."""
    return f"{workspace}/datasets/{dataset}-{sha256}"


def part_key(workspace: str, dataset: str, number: int, sha256: str) -> str:
    """Return the key of a part of an upload."""
    return f"{parts_prefix(workspace, dataset)}{number}-{sha256}"


def parts_prefix(workspace: str, dataset: str) -> str:
    """Return the common prefix of the keys of a dataset's parts."""
    return f"{workspace}/parts/{dataset}/"


def map_key(workspace: str, version: str | None, sha256: str) -> str:
    """Return the key of a version's map; keys of old versions contain no id, only the hash."""
    return f"{workspace}/maps/{_of_version(version, sha256)}"


def onnx_key(workspace: str, version: str | None, sha256: str) -> str:
    """Return the key of a version's map as ONNX."""
    return f"{workspace}/onnx/{_of_version(version, sha256)}"


def judged_key(workspace: str, version: str | None, sha256: str) -> str:
    """Return the key of a version's judged rows."""
    return f"{workspace}/judged/{_of_version(version, sha256)}"


def _of_version(id: str | None, sha256: str) -> str:
    return sha256 if id is None else f"{id}-{sha256}"


def parse_key(key: str) -> ParsedKey | None:
    """Parse a key of the current format; return None for any other key.

    >>> parse_key(map_key("ws_" + 20 * "0", "ver_" + 20 * "1", 64 * "f")).kind
    <BlobKind.MAP: 'maps'>
    >>> parse_key("ws_" + 20 * "0" + "/maps/" + 64 * "f") is None
    True
    """
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    workspace, *rest = found.groups()
    pairs = zip(BlobKind, rest[::2], rest[1::2], strict=True)
    kind, id, sha256 = next(pair for pair in pairs if pair[1] is not None)
    return ParsedKey(workspace, kind, id, sha256)


def kind_of(key: str) -> str:
    """Return the kind of a blob, given its key in the current or an older format.

    >>> kind_of("ws_1/maps/0f1e")
    'maps'
    """
    _, _, rest = key.partition("/")
    kind = rest.partition("/")[0]
    return kind if kind in set(BlobKind) else "unknown"
