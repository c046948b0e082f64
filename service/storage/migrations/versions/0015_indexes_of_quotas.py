"""Index the stored bytes of a workspace, so that their sum reads no wide rows."""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

INDEXES = (
    ("ix_datasets_workspace_bytes_part_bytes", "datasets", ["workspace", "bytes", "part_bytes"]),
    ("ix_calibrators_workspace_stored_bytes", "calibrators", ["workspace", "stored_bytes"]),
    ("ix_runs_workspace_stored_bytes", "runs", ["workspace", "stored_bytes"]),
)


def upgrade() -> None:
    for name, table, columns in INDEXES:
        op.create_index(name, table, columns)


def downgrade() -> None:
    for name, table, _ in INDEXES:
        op.drop_index(name, table)
