"""Storage quota of a workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from service.errors import TooLarge
from service.storage.database import Database, check_free, share_of_disk
from service.storage.repository import json_bytes
from service.storage.store import Store


class Quota:
    """Storage limit per workspace in bytes, for datasets, versions and runs together.

    If ``most_bytes`` is 0, the limit is a share of the disk that holds ``folder``. If blobs are
    stored in a bucket, ``folder`` is None and there is no limit.
    """

    def __init__(self, most_bytes: int, folder: Path | None) -> None:
        self._folder = folder
        self._most_bytes: int | None = most_bytes or None
        if not most_bytes and folder is not None:
            self._most_bytes = share_of_disk(folder)

    def check(
        self, store: Store, workspace: str, more: int = 0, *, is_promotion: bool = False
    ) -> None:
        """Raise TooLarge if ``more`` bytes would exceed the limit, or NoSpace if the disk is full.

        Promotions may exceed the limit by a tenth, so that a full workspace never blocks a release.
        """
        if self._folder is not None:
            check_free(self._folder)
        if self._most_bytes is None:
            return
        stored = store.keys.stored_bytes(workspace)
        reserve = self._most_bytes // 10 if is_promotion else 0
        if stored + more > self._most_bytes + reserve:
            raise TooLarge(
                "workspace_full",
                f"this workspace stores {stored} bytes, and this request would exceed its limit of "
                f"{self._most_bytes}: delete datasets, or raise max_workspace_bytes",
                limit=self._most_bytes,
            )

    def check_notes(self, database: Database, workspace: str, *notes: Any) -> None:
        """Raise TooLarge if a version's notes exceed the limit; removal is always allowed."""
        if any(notes):
            with database.read() as store:  # a sum in a write transaction would delay others
                self.check(store, workspace, json_bytes(*notes))
