"""Store the bytes of open uploads, and index columns to avoid reading wide rows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

INDEXES = {
    "ix_keys_workspace_created_at": ("keys", ["workspace", "created_at"]),
    "ix_run_statistics_run_session_step_posted_at": (
        "run_statistics",
        ["run", "session", "step", "posted_at"],
    ),
    "ix_fits_dataset_status": ("fits", ["dataset", "status"]),
    "ix_fits_evaluation_status": ("fits", ["evaluation", "status"]),
}


def upgrade() -> None:
    bytes = sa.Column("part_bytes", sa.BigInteger(), nullable=False, server_default="0")
    op.add_column("datasets", bytes)
    op.execute(
        "UPDATE datasets SET part_bytes = (SELECT coalesce(sum(dataset_parts.bytes), 0) "
        "FROM dataset_parts WHERE dataset_parts.dataset = datasets.id)"
    )
    for name, (table, columns) in INDEXES.items():
        op.create_index(name, table, columns)
    is_open = sa.text("sha256 IS NULL")
    op.create_index(
        "ix_datasets_open",
        "datasets",
        ["workspace"],
        sqlite_where=is_open,
        postgresql_where=is_open,
    )


def downgrade() -> None:
    op.drop_index("ix_datasets_open", "datasets")
    for name, (table, _) in INDEXES.items():
        op.drop_index(name, table)
    op.drop_column("datasets", "part_bytes")
