"""Where the bytes of things lie in the blob store."""

from __future__ import annotations


def dataset_key(workspace: str, dataset: str, sha256: str) -> str:
    """A dataset's bytes; by its id, so that deleting one can never hit a new one of equal bytes."""
    return f"{workspace}/datasets/{dataset}-{sha256}"


def part_key(workspace: str, dataset: str, number: int, sha256: str) -> str:
    """A part of a dataset that is being uploaded."""
    return f"{workspace}/parts/{dataset}/{number}-{sha256}"


def map_key(workspace: str, sha256: str) -> str:
    """The archive of a map; maps are never deleted."""
    return f"{workspace}/maps/{sha256}"


def onnx_key(workspace: str, sha256: str) -> str:
    """The ONNX form of a map."""
    return f"{workspace}/onnx/{sha256}"
