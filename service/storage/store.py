"""All repositories, bound to one transaction."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.access.repository import Idempotency, Keys, SessionRepository
from service.datasets.repository import Datasets
from service.fits.repository import Fits, WorkerRepository
from service.maintenance.inventory_repository import Inventory
from service.maintenance.periodic_tasks import Chores
from service.registry.aliases.repository import Aliases
from service.registry.repository import Calibrators
from service.runs.history_repository import RunHistory
from service.runs.repository import Runs, RunSteps
from service.web.queries import Overview


class Store:
    """Repositories that share a transaction."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.keys = Keys(session)
        self.web_sessions = SessionRepository(session)
        self.datasets = Datasets(session)
        self.calibrators = Calibrators(session)
        self.aliases = Aliases(session)
        self.fits = Fits(session)
        self.workers = WorkerRepository(session)
        self.idempotency = Idempotency(session)
        self.chores = Chores(session)
        self.runs = Runs(session)
        self.run_steps = RunSteps(session)
        self.run_history = RunHistory(session)
        self.overview = Overview(session)
        self.inventory = Inventory(session)
