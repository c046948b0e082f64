"""Store when a fit last lost its worker."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

NAME = "ix_fits_lost"


def upgrade() -> None:
    op.add_column("fits", sa.Column("lost_at", sa.Float()))
    was_lost = sa.text("lost_at IS NOT NULL")
    op.create_index(
        NAME,
        "fits",
        ["workspace", "lost_at"],
        sqlite_where=was_lost,
        postgresql_where=was_lost,
    )


def downgrade() -> None:
    op.drop_index(NAME, "fits")
    op.drop_column("fits", "lost_at")
