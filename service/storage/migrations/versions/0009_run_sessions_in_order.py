"""Index the sessions of a run, to find the newest without reading their states."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

NAME = "ix_run_sessions_run_begun_at_number_base_step"


def upgrade() -> None:
    op.create_index(NAME, "run_sessions", ["run", "begun_at", "number", "base_step"])


def downgrade() -> None:
    op.drop_index(NAME, "run_sessions")
