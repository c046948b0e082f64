"""An index of the datasets that are deleted after their fits, for housekeeping"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_datasets_delete_after_fit",
        "datasets",
        ["workspace", "created_at"],
        sqlite_where=sa.text("delete_after_fit = 1"),
        postgresql_where=sa.text("delete_after_fit"),
    )


def downgrade() -> None:
    op.drop_index("ix_datasets_delete_after_fit", "datasets")
