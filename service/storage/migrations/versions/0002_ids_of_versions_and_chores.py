"""Give versions ids, which name their blobs, and add the table of chores."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # versions that are there keep the keys of their blobs, which have no id in them
    op.add_column("versions", sa.Column("id", sa.String(length=40), nullable=True))
    op.create_index(op.f("ix_versions_id"), "versions", ["id"], unique=True)
    op.create_table(
        "chores",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("done_at", sa.Float(), nullable=False),
        sa.Column("note", sa.String(length=100), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_chores")),
    )


def downgrade() -> None:
    op.drop_table("chores")
    op.drop_index(op.f("ix_versions_id"), table_name="versions")
    op.drop_column("versions", "id")
