"""Stored datasets as calibrators takes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calibrators import CalibrationSet
from calibrators.errors import CalibrationError, FitCancelled
from service.datasets import formats
from service.datasets.formats import Format
from service.errors import BlobCorrupt, BlobMissing, NotFound, ServiceError
from service.storage.blob_keys import dataset_key
from service.storage.blobs import Blobs
from service.storage.records import Dataset


def load(blobs: Blobs, dataset: Dataset | None, name: str) -> CalibrationSet:
    """Return a dataset by its row; ``name`` is what it is called if that is not possible."""
    with stored_file(blobs, dataset, name) as path, named(name):
        assert dataset is not None  # noqa: S101 - its file was found
        return formats.load(path, Format(dataset.format or ""), dataset.kind)


@contextmanager
def stored_file(blobs: Blobs, dataset: Dataset | None, name: str) -> Iterator[Path]:
    """Provide a dataset as a file to read, its bytes checked against their hash."""
    if dataset is None or dataset.sha256 is None or dataset.format is None:
        raise NotFound("dataset_gone", f"the {name} of this fit was deleted: send it again")
    key = dataset_key(dataset.workspace, dataset.id, dataset.sha256)
    try:
        with blobs.file(key, dataset.sha256) as path:
            yield path
    except BlobMissing as error:
        raise BlobMissing(
            "blob_missing", f"the stored bytes of the {name} are gone: send it again"
        ) from error
    except BlobCorrupt as error:
        raise BlobCorrupt(
            "blob_corrupt", f"the stored bytes of the {name} are damaged: send it again"
        ) from error


@contextmanager
def named(subject: str) -> Iterator[None]:
    """Let the sentences of calibrators say what they are about."""
    try:
        yield
    except FitCancelled:
        raise
    except CalibrationError as error:
        raise ServiceError(error.code, f"{subject}: {error}") from error
