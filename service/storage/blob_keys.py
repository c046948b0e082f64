"""Where the bytes of things lie in the blob store.

A key holds the id of what its row describes, and that id is new for every writer: no key is written
again by somebody who does not know its row, and what was deleted can never be something new.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

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
    """What a blob holds: the folder of its key."""

    DATASET = "datasets"
    PART = "parts"
    MAP = "maps"
    ONNX = "onnx"
    JUDGED = "judged"


OF_VERSIONS = (BlobKind.MAP, BlobKind.ONNX, BlobKind.JUDGED)


class ParsedKey(NamedTuple):
    """What a key says: the id is that of a dataset or a version."""

    workspace: str
    kind: BlobKind
    id: str
    sha256: str


def dataset_key(workspace: str, dataset: str, sha256: str) -> str:
    """A dataset's bytes."""
    return f"{workspace}/datasets/{dataset}-{sha256}"


def part_key(workspace: str, dataset: str, number: int, sha256: str) -> str:
    """A part of a dataset that is being uploaded."""
    return f"{parts_prefix(workspace, dataset)}{number}-{sha256}"


def parts_prefix(workspace: str, dataset: str) -> str:
    """What the keys of all parts of a dataset begin with."""
    return f"{workspace}/parts/{dataset}/"


def map_key(workspace: str, version: str | None, sha256: str) -> str:
    """The archive of a version's map; versions from before they had ids share it by its hash."""
    return f"{workspace}/maps/{_of_version(version, sha256)}"


def onnx_key(workspace: str, version: str | None, sha256: str) -> str:
    """The ONNX form of a version's map."""
    return f"{workspace}/onnx/{_of_version(version, sha256)}"


def judged_key(workspace: str, version: str | None, sha256: str) -> str:
    """Return the key of the rows that a version was judged on."""
    return f"{workspace}/judged/{_of_version(version, sha256)}"


def _of_version(id: str | None, sha256: str) -> str:
    return sha256 if id is None else f"{id}-{sha256}"


def parse_key(key: str) -> ParsedKey | None:
    """What a key of today's shape says; None if it has another.

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
    """What a blob holds by its key, also of an older shape.

    >>> kind_of("ws_1/maps/0f1e")
    'maps'
    """
    _, _, rest = key.partition("/")
    kind = rest.partition("/")[0]
    return kind if kind in set(BlobKind) else "unknown"
