"""Index unneeded datasets for housekeeping, and the fits of a calibrator."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

FITS = (
    ["workspace", "calibrator_name", "created_at"],
    ["workspace", "calibrator_name", "status", "created_at"],
)


def upgrade() -> None:
    op.create_index(
        "ix_datasets_delete_after_fit",
        "datasets",
        ["workspace", "created_at"],
        sqlite_where=sa.text("delete_after_fit = 1"),
        postgresql_where=sa.text("delete_after_fit"),
    )
    for columns in FITS:
        op.create_index(f"ix_fits_{'_'.join(columns)}", "fits", columns)


def downgrade() -> None:
    for columns in FITS:
        op.drop_index(f"ix_fits_{'_'.join(columns)}", "fits")
    op.drop_index("ix_datasets_delete_after_fit", "datasets")
