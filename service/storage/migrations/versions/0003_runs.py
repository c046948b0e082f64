"""Add training runs with their sessions, statistics and steps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _runs()
    _sessions()
    _statistics()
    _steps()


def downgrade() -> None:
    for table in ("run_steps", "run_statistics", "run_sessions", "runs"):
        op.drop_table(table)


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("workspace", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=True),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("archived_at", sa.Float(), nullable=True),
        sa.Column("created_by", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["workspace"], ["workspaces.id"], name=op.f("fk_runs_workspace")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("workspace", "name", name=op.f("uq_runs_workspace_name")),
    )
    op.create_index(op.f("ix_runs_workspace_updated_at"), "runs", ["workspace", "updated_at"])


def _sessions() -> None:
    op.create_table(
        "run_sessions",
        sa.Column("run", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("id", sa.String(length=100), nullable=False),
        sa.Column("base_step", sa.Integer(), nullable=False),
        sa.Column("base_state", sa.JSON(), nullable=True),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("decides", sa.String(length=16), nullable=False),
        sa.Column("merge_timeout", sa.Float(), nullable=False),
        sa.Column("begun_at", sa.Float(), nullable=False),
        sa.Column("created_by", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_run_sessions_run")),
        sa.PrimaryKeyConstraint("run", "number", name=op.f("pk_run_sessions")),
        sa.UniqueConstraint("run", "id", name=op.f("uq_run_sessions_run_id")),
    )


def _statistics() -> None:
    op.create_table(
        "run_statistics",
        sa.Column("run", sa.String(length=40), nullable=False),
        sa.Column("session", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("statistics", sa.LargeBinary(), nullable=True),
        sa.Column("claimed", sa.JSON(), nullable=True),
        sa.Column("late", sa.Boolean(), nullable=False),
        sa.Column("posted_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run", "session"],
            ["run_sessions.run", "run_sessions.number"],
            name=op.f("fk_run_statistics_run_session"),
        ),
        sa.PrimaryKeyConstraint("run", "session", "step", "rank", name=op.f("pk_run_statistics")),
    )
    # few statistics wait to be merged, and they are looked for all the time
    waiting = sa.text("statistics IS NOT NULL")
    op.create_index(
        op.f("ix_run_statistics_open"),
        "run_statistics",
        ["run", "session", "step"],
        sqlite_where=waiting,
        postgresql_where=waiting,
    )


def _steps() -> None:
    op.create_table(
        "run_steps",
        sa.Column("run", sa.String(length=40), nullable=False),
        sa.Column("session", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("state", sa.JSON(), nullable=True),
        sa.Column("ranks", sa.JSON(), nullable=False),
        sa.Column("partial", sa.Boolean(), nullable=False),
        sa.Column("verified", sa.Boolean(), nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("bins", sa.JSON(), nullable=True),
        sa.Column("reliability", sa.JSON(), nullable=True),
        sa.Column("switched", sa.JSON(), nullable=False),
        sa.Column("decided_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run", "session"],
            ["run_sessions.run", "run_sessions.number"],
            name=op.f("fk_run_steps_run_session"),
        ),
        sa.PrimaryKeyConstraint("run", "session", "step", name=op.f("pk_run_steps")),
    )
    op.create_index(op.f("ix_run_steps_run_step"), "run_steps", ["run", "step"])
