"""Store the rows that a version was judged on, and a fit's recommended version."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("versions", sa.Column("judged_sha256", sa.String(64), nullable=True))
    op.add_column("versions", sa.Column("judged_data", sa.String(64), nullable=True))
    op.add_column("versions", sa.Column("verdict_sentence", sa.Text(), nullable=True))
    op.add_column("fits", sa.Column("recommendation", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("fits", "recommendation")
    op.drop_column("versions", "verdict_sentence")
    op.drop_column("versions", "judged_data")
    op.drop_column("versions", "judged_sha256")
