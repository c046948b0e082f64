"""Post the statistics of a rank as the route does, but without HTTP."""

from __future__ import annotations

from service.access.permissions import Principal
from service.access.quota import Quota
from service.runs.service import Posted, SentStatistics, decide, outcome, record
from service.storage.database import Database


def post(database: Database, principal: Principal, name: str, sent: SentStatistics) -> Posted:
    """Record a rank's statistics, then decide the steps that are due."""
    recorded = record(database, Quota(0, None), principal, name, sent)
    if recorded.is_due:
        decide(database, recorded.session.key)
    return outcome(database, recorded)
