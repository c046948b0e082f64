"""Index fits so that workers can claim their rows, and drop the tables of DBOS."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

STARTED = "ix_fits_workspace_started_at"
QUEUED = "ix_fits_queued"
SCHEMA = "dbos"
# what DBOS makes beside our tables, those that others refer to last
SQLITE_TABLES = (
    "notifications",
    "workflow_events",
    "workflow_events_history",
    "streams",
    "workflow_schedules",
    "application_versions",
    "queues",
    "workflow_input",
    "workflow_output",
    "operation_outputs",
    "workflow_status",
    "dbos_migrations",
)


def upgrade() -> None:
    waits = sa.text("status = 'queued'")
    op.create_index(STARTED, "fits", ["workspace", "started_at"])
    op.create_index(
        QUEUED,
        "fits",
        ["queue", "workspace", "created_at"],
        sqlite_where=waits,
        postgresql_where=waits,
    )
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    if not _is_ours(None if is_sqlite else SCHEMA):
        return
    if is_sqlite:
        for table in SQLITE_TABLES:
            op.execute(f"DROP TABLE IF EXISTS {table}")
    else:
        op.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


def downgrade() -> None:
    """Drop the indexes; an earlier release creates the tables of its own queue."""
    op.drop_index(QUEUED, "fits")
    op.drop_index(STARTED, "fits")


def _is_ours(schema: str | None) -> bool:
    """Return whether DBOS has tables here that hold no other program's jobs."""
    connection = op.get_bind()
    tables = sa.inspect(connection).get_table_names(schema=schema)
    if not {"dbos_migrations", "workflow_status"} <= set(tables):
        return False
    jobs = sa.table("workflow_status", sa.column("name"), schema=schema)
    others = sa.select(sa.func.count()).select_from(jobs).where(jobs.c.name != "fit")
    return connection.execute(others).scalar_one() == 0
