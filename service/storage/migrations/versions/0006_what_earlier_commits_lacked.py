"""Add columns and indexes that migrations 0002 to 0004 gained after their first commit.

Databases created in between have a later revision but lack them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

INDEXES = {
    "ix_run_steps_run_step": ("run_steps", ["run", "step"]),
    "ix_fits_workspace_status_created_at": ("fits", ["workspace", "status", "created_at"]),
}


def upgrade() -> None:
    if "note" not in _columns("chores"):
        _add("chores", sa.Column("note", sa.String(100), nullable=False, server_default=""))
    if "begun_at" not in _columns("run_sessions"):
        _add("run_sessions", sa.Column("begun_at", sa.Float(), nullable=False, server_default="0"))
        op.execute("UPDATE run_sessions SET begun_at = created_at")
    for name, (table, columns) in INDEXES.items():
        if name not in {one["name"] for one in sa.inspect(op.get_bind()).get_indexes(table)}:
            op.create_index(name, table, columns)


def downgrade() -> None:
    """Do nothing: the columns and indexes belong to earlier revisions."""


def _columns(table: str) -> set[str]:
    return {one["name"] for one in sa.inspect(op.get_bind()).get_columns(table)}


def _add(table: str, column: sa.Column[object]) -> None:
    op.add_column(table, column)
    if op.get_bind().dialect.name != "sqlite":  # which cannot change a column
        op.alter_column(table, column.name, server_default=None)
