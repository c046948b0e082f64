"""Tables of runs; all others are in tables.py."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from service.storage.tables import ID, NAME, SHA256, metadata, stored_bytes, workspace

runs = Table(
    "runs",
    metadata,
    Column("id", ID, primary_key=True),
    workspace(),
    Column("name", NAME, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("settings", JSON(none_as_null=True)),  # NULL for a monitor
    Column("tags", JSON, nullable=False),
    Column("description", Text, nullable=False),
    Column("archived_at", Float),
    stored_bytes(),
    Column("created_by", String(200), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    UniqueConstraint("workspace", "name"),
    Index(None, "workspace", "updated_at"),
    Index(None, "workspace", "stored_bytes"),
    Index(None, "archived_at", "kind"),  # for the metrics
)

run_sessions = Table(
    "run_sessions",
    metadata,
    Column("run", ID, ForeignKey("runs.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("id", String(100), nullable=False),  # chosen by the caller
    Column("base_step", Integer, nullable=False),
    Column("base_state", JSON(none_as_null=True)),
    Column("world_size", Integer, nullable=False),
    Column("decides", String(16), nullable=False),
    Column("merge_timeout", Float, nullable=False),
    Column("begun_at", Float, nullable=False),  # when the job began; may be reported late
    Column("created_by", String(200), nullable=False),
    Column("created_at", Float, nullable=False),
    UniqueConstraint("run", "id"),
    # finds the newest session, and all base steps in order, without reading rows with large states
    Index(None, "run", "begun_at", "number", "base_step"),
)
SESSION = tuple(column for column in run_sessions.c if column.name != "base_state")

run_statistics = Table(
    "run_statistics",
    metadata,
    Column("run", ID, primary_key=True),
    Column("session", Integer, primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("sha256", SHA256, nullable=False),
    Column("statistics", LargeBinary),  # NULL once they are merged
    Column("claimed", JSON(none_as_null=True)),
    Column("late", Boolean, nullable=False),
    Column("posted_at", Float, nullable=False),
    ForeignKeyConstraint(["run", "session"], ["run_sessions.run", "run_sessions.number"]),
    Index(None, "run", "session", "step", "posted_at"),  # to count without reading 500 kB rows
)
Index(
    "ix_run_statistics_open",
    run_statistics.c.run,
    run_statistics.c.session,
    run_statistics.c.step,
    sqlite_where=run_statistics.c.statistics.is_not(None),
    postgresql_where=run_statistics.c.statistics.is_not(None),
)

run_steps = Table(
    "run_steps",
    metadata,
    Column("run", ID, primary_key=True),
    Column("session", Integer, primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("state", JSON(none_as_null=True)),
    Column("ranks", JSON, nullable=False),
    Column("partial", Boolean, nullable=False),
    Column("verified", Boolean),
    Column("metrics", JSON, nullable=False),
    Column("bins", JSON(none_as_null=True)),
    Column("reliability", JSON(none_as_null=True)),
    Column("switched", JSON, nullable=False),
    Column("decided_at", Float, nullable=False),
    ForeignKeyConstraint(["run", "session"], ["run_sessions.run", "run_sessions.number"]),
    Index(None, "run", "step"),
)
