"""A version with what was judged of it."""

from __future__ import annotations

from typing import NamedTuple, Self

from calibrators import Report
from service.storage.records import Dataset, Version
from service.storage.store import Store


class Judged(NamedTuple):
    """A version and its report, if it has one."""

    version: Version
    report: Report | None

    @classmethod
    def of(cls, store: Store, version: Version) -> Self:
        """A version with its report from the database."""
        document = store.calibrators.report(version.calibrator, version.number)
        return cls(version, None if document is None else Report.from_dict(document))

    @property
    def title(self) -> str:
        """What it is called beside others."""
        return f"version {self.version.number}, {self.version.method}"

    def has_seen(self, dataset: Dataset) -> bool:
        """Whether the version was fitted on this dataset."""
        return self.version.dataset_sha256 == dataset.sha256
