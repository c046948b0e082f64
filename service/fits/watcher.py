"""Follow fits until they are final."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from service.concurrency.long_poll import Watcher
from service.storage.database import Database
from service.storage.records import Fit


class FitWatcher(Watcher[str, Fit]):
    """Tells how fits go on."""

    def __init__(self, database: Database) -> None:
        def read(ids: list[str]) -> dict[str, Fit]:
            with database.read() as store:
                return {fit.id: fit for fit in store.fits.several(ids)}

        super().__init__("fits", read)

    def changes_of(self, fit: Fit) -> AsyncGenerator[Fit]:
        """The fit now and after every change, until it is final or ``stop`` is called."""
        return self.changes(fit.id, fit, _is_final)

    async def finished(self, fit: Fit, seconds: float) -> Fit:
        """The fit when it is final, or as it is after so many seconds or at ``stop``."""
        return await self.until(fit.id, fit, _is_final, seconds)


def _is_final(fit: Fit) -> bool:
    return fit.status.is_final
