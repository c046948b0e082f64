"""Store the number of segments of each dataset."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("datasets", sa.Column("groups", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("datasets", "groups")
