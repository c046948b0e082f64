"""Datasets that have served their time."""

from __future__ import annotations

from service.storage.blob_keys import dataset_key, part_key
from service.storage.blobs import Blobs
from service.storage.database import Database
from service.storage.records import Dataset, Fit


def forget_spent_datasets(database: Database, blobs: Blobs, fit: Fit) -> None:
    """Delete the datasets of a finished fit that were sent for fits only and have no more to do."""
    for id in filter(None, (fit.dataset, fit.evaluation)):
        with database.read() as store:
            dataset = store.datasets.get(fit.workspace, id)
        if dataset is not None and dataset.delete_after_fit:
            forget_dataset(database, blobs, dataset)


def forget_dataset(database: Database, blobs: Blobs, dataset: Dataset) -> bool:
    """Delete a dataset's row and then its bytes; False if a fit needs it or it has changed."""
    with database.write() as store:
        current = store.datasets.get(dataset.workspace, dataset.id, lock=True)
        if current != dataset or store.datasets.is_in_use(dataset.id):
            return False
        parts = store.datasets.parts_of(dataset.id)
        store.datasets.remove(dataset.id)
    for part in parts:
        blobs.delete(part_key(dataset.workspace, dataset.id, part.number, part.sha256))
    if dataset.sha256 is not None:
        blobs.delete(dataset_key(dataset.workspace, dataset.id, dataset.sha256))
    return True
