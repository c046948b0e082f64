"""All repositories on one transaction."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.storage.aliases import Aliases
from service.storage.calibrators import Calibrators
from service.storage.chores import Chores
from service.storage.datasets import Datasets
from service.storage.fits import Fits, Workers
from service.storage.idempotency import Idempotency
from service.storage.inventory import Inventory
from service.storage.keys import Keys
from service.storage.overview import Overview
from service.storage.run_steps import RunSteps
from service.storage.runs import Runs
from service.storage.sessions import Sessions


class Store:
    """What use cases see of the database: repositories that share a transaction."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.keys = Keys(session)
        self.web_sessions = Sessions(session)
        self.datasets = Datasets(session)
        self.calibrators = Calibrators(session)
        self.aliases = Aliases(session)
        self.fits = Fits(session)
        self.workers = Workers(session)
        self.idempotency = Idempotency(session)
        self.chores = Chores(session)
        self.runs = Runs(session)
        self.run_steps = RunSteps(session)
        self.overview = Overview(session)
        self.inventory = Inventory(session)
