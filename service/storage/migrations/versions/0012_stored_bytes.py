"""Store how many bytes the versions of a calibrator and the steps of a run take."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("calibrators", "runs"):
        op.add_column(
            table, sa.Column("stored_bytes", sa.BigInteger(), nullable=False, server_default="0")
        )
    op.execute(
        "UPDATE calibrators SET stored_bytes = (SELECT COALESCE(SUM(map_bytes), 0) FROM versions "
        "WHERE versions.calibrator = calibrators.id)"
    )


def downgrade() -> None:
    for table in ("calibrators", "runs"):
        op.drop_column(table, "stored_bytes")
