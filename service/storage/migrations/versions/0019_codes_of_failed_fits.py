"""Store the code of a failed fit in a column, because errors may be long."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("fits", sa.Column("error_code", sa.String(64)))
    fits = sa.table("fits", sa.column("error", sa.JSON), sa.column("error_code", sa.String))
    code = fits.c.error["code"].as_string()
    op.execute(sa.update(fits).where(code.is_not(None)).values(error_code=code))
    op.create_index("ix_fits_error_code", "fits", ["error_code"])


def downgrade() -> None:
    op.drop_index("ix_fits_error_code", "fits")
    op.drop_column("fits", "error_code")
