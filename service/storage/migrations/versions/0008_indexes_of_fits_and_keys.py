"""Indexes to find the fits that need a dataset"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0006"
branch_labels = None
depends_on = None

INDEXES = {
    "ix_fits_dataset_status": ("fits", ["dataset", "status"]),
    "ix_fits_evaluation_status": ("fits", ["evaluation", "status"]),
}


def upgrade() -> None:
    for name, (table, columns) in INDEXES.items():
        op.create_index(name, table, columns)


def downgrade() -> None:
    for name, (table, _) in INDEXES.items():
        op.drop_index(name, table)
