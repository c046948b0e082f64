"""Index fits and runs, so that metrics count them without reading wide rows."""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_fits_status", "fits")
    op.create_index(
        "ix_fits_status_queue_started_at_finished_at",
        "fits",
        ["status", "queue", "started_at", "finished_at"],
    )
    op.create_index("ix_runs_archived_at_kind", "runs", ["archived_at", "kind"])


def downgrade() -> None:
    op.drop_index("ix_runs_archived_at_kind", "runs")
    op.drop_index("ix_fits_status_queue_started_at_finished_at", "fits")
    op.create_index("ix_fits_status", "fits", ["status"])
