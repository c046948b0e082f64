"""Add the sessions of the dashboard, and an index of running fits."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

FITS = "ix_fits_workspace_status_created_at"


def upgrade() -> None:
    op.create_table(
        "web_sessions",
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["key"], ["keys.id"], name=op.f("fk_web_sessions_key")),
        sa.PrimaryKeyConstraint("token_sha256", name=op.f("pk_web_sessions")),
    )
    op.create_index(op.f("ix_web_sessions_expires_at"), "web_sessions", ["expires_at"])
    op.create_index(FITS, "fits", ["workspace", "status", "created_at"])


def downgrade() -> None:
    op.drop_index(FITS, "fits")
    op.drop_table("web_sessions")
