"""Index the sessions of a key, whose oldest are deleted at sign-in."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

NAME = "ix_web_sessions_key_created_at"


def upgrade() -> None:
    op.create_index(NAME, "web_sessions", ["key", "created_at"])


def downgrade() -> None:
    op.drop_index(NAME, "web_sessions")
