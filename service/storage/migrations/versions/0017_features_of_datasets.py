"""Store the number and size of a dataset's features, and whether it has a head."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("datasets", sa.Column("features", sa.Integer))
    op.add_column("datasets", sa.Column("feature_bytes", sa.BigInteger))
    op.add_column("datasets", sa.Column("has_head", sa.Boolean))


def downgrade() -> None:
    op.drop_column("datasets", "has_head")
    op.drop_column("datasets", "feature_bytes")
    op.drop_column("datasets", "features")
