"""The tables. Times are seconds since 1970 (UTC) by the database's own clock."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

ID = String(40)
NAME = String(64)
SHA256 = String(64)


def workspace() -> Column[str]:
    """Return a column for the workspace that owns a row."""
    return Column("workspace", ID, ForeignKey("workspaces.id"), nullable=False)


def stored_bytes() -> Column[int]:
    """Return a column for the number of bytes stored for a row, including its blobs."""
    return Column("stored_bytes", BigInteger, nullable=False, server_default="0")


workspaces = Table(
    "workspaces",
    metadata,
    Column("id", ID, primary_key=True),
    Column("name", NAME, nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
)

keys = Table(
    "keys",
    metadata,
    Column("id", ID, primary_key=True),
    workspace(),
    Column("name", String(200), nullable=False),
    Column("secret_sha256", SHA256, nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("revoked_at", Float),
    Column("last_used_at", Float),
    Index(None, "workspace", "created_at"),
)

web_sessions = Table(
    "web_sessions",
    metadata,
    Column("token_sha256", SHA256, primary_key=True),
    Column("key", ID, ForeignKey("keys.id"), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Index(None, "expires_at"),
    Index(None, "key", "created_at"),
)

datasets = Table(
    "datasets",
    metadata,
    Column("id", ID, primary_key=True),
    workspace(),
    Column("kind", String(16)),
    Column("sha256", SHA256),  # NULL until the upload is complete, as are all facts about the bytes
    Column("format", String(16)),
    Column("bytes", BigInteger),
    Column("rows", BigInteger),
    Column("classes", Integer),
    Column("segments", Integer),
    Column("features", Integer),
    Column("feature_bytes", BigInteger),
    Column("has_head", Boolean),
    Column("part_bytes", BigInteger, nullable=False, server_default="0"),  # total of all parts
    Column("delete_after_fit", Boolean, nullable=False),
    Column("expires_at", Float),
    Column("created_at", Float, nullable=False),
    UniqueConstraint("workspace", "sha256", "kind"),
    Index(None, "workspace", "created_at"),
    Index(None, "workspace", "bytes", "part_bytes"),  # for the sum that a quota limits
    Index(None, "expires_at"),
)

Index(
    "ix_datasets_open",
    datasets.c.workspace,
    sqlite_where=datasets.c.sha256.is_(None),
    postgresql_where=datasets.c.sha256.is_(None),
)

Index(
    "ix_datasets_delete_after_fit",
    datasets.c.workspace,
    datasets.c.created_at,
    sqlite_where=datasets.c.delete_after_fit,
    postgresql_where=datasets.c.delete_after_fit,
)

parts = Table(
    "dataset_parts",
    metadata,
    Column("dataset", ID, ForeignKey("datasets.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", SHA256, nullable=False),
)

calibrators = Table(
    "calibrators",
    metadata,
    Column("id", ID, primary_key=True),
    workspace(),
    Column("name", NAME, nullable=False),
    Column("last_version", Integer, nullable=False),
    stored_bytes(),
    Column("created_at", Float, nullable=False),
    UniqueConstraint("workspace", "name"),
    Index(None, "workspace", "stored_bytes"),
)

versions = Table(
    "versions",
    metadata,
    Column("calibrator", ID, ForeignKey("calibrators.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("id", ID),  # part of its blobs' keys; old versions have none
    Column("method", String(40), nullable=False),
    Column("params", JSON, nullable=False),
    Column("seed", BigInteger),
    Column("kind", String(16), nullable=False),
    Column("classes", Integer, nullable=False),
    Column("model", String(200)),
    Column("dataset_sha256", SHA256),
    Column("rows", BigInteger),
    Column("verdict", String(40)),
    Column("verdict_sentence", Text),
    Column("fit", ID),
    Column("fit_info", JSON, nullable=False),
    Column("libraries", JSON, nullable=False),
    Column("map_sha256", SHA256, nullable=False),
    Column("map_bytes", BigInteger, nullable=False),
    Column("onnx_sha256", SHA256),
    Column("judged_sha256", SHA256),  # of the blob of judged rows, if the version has any
    Column("judged_data", SHA256),  # the fingerprint of their dataset
    Column("tags", JSON, nullable=False),
    Column("description", Text, nullable=False),
    Column("created_by", String(200), nullable=False),
    Column("created_at", Float, nullable=False),
    Index(None, "id", unique=True),
)

reports = Table(
    "reports",
    metadata,
    Column("calibrator", ID, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("document", JSON, nullable=False),
    ForeignKeyConstraint(["calibrator", "number"], ["versions.calibrator", "versions.number"]),
)

aliases = Table(
    "aliases",
    metadata,
    Column("calibrator", ID, ForeignKey("calibrators.id"), primary_key=True),
    Column("name", NAME, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("moved_at", Float, nullable=False),
)

alias_moves = Table(
    "alias_moves",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("calibrator", ID, ForeignKey("calibrators.id"), nullable=False),
    Column("alias", NAME, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("from_version", Integer),
    Column("to_version", Integer, nullable=False),
    Column("moved_by", String(200), nullable=False),
    Column("moved_at", Float, nullable=False),
    Column("reason", Text, nullable=False),
    Column("forced", Boolean, nullable=False),
    Column("rollback", Boolean, nullable=False),
    UniqueConstraint("calibrator", "alias", "revision"),
    sqlite_autoincrement=True,
)

fits = Table(
    "fits",
    metadata,
    Column("id", ID, primary_key=True),
    workspace(),
    Column("calibrator", ID, ForeignKey("calibrators.id"), nullable=False),
    Column("calibrator_name", NAME, nullable=False),
    Column("order", JSON, nullable=False),
    Column("dataset", ID, nullable=False),
    Column("evaluation", ID),
    Column("queue", String(40), nullable=False),
    Column("status", String(16), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("cancel_requested", Boolean, nullable=False),
    Column("progress", JSON),
    Column("device", String(40)),
    Column("versions", JSON, nullable=False),
    Column("recommendation", JSON),  # the recommended one of several versions, and the reason
    Column("error", JSON),
    Column("error_code", String(64)),  # that of the error, which may be long, for the metrics
    Column("worker", String(80)),
    Column("created_by", String(200), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("finished_at", Float),
    Column("lost_at", Float),  # when it last lost its worker
    Index(None, "workspace", "created_at"),
    Index(None, "workspace", "status", "created_at"),
    Index(None, "workspace", "calibrator_name", "created_at"),
    Index(None, "workspace", "calibrator_name", "status", "created_at"),
    Index(None, "workspace", "started_at"),
    Index(None, "status", "queue", "started_at", "finished_at"),  # for the metrics
    Index(None, "error_code"),
    Index(None, "dataset", "status"),
    Index(None, "evaluation", "status"),
)

Index(
    "ix_fits_lost",
    fits.c.workspace,
    fits.c.lost_at,
    sqlite_where=fits.c.lost_at.is_not(None),
    postgresql_where=fits.c.lost_at.is_not(None),
)

Index(
    "ix_fits_queued",
    fits.c.queue,
    fits.c.workspace,
    fits.c.created_at,
    sqlite_where=fits.c.status == "queued",
    postgresql_where=fits.c.status == "queued",
)

workers = Table(
    "fit_workers",
    metadata,
    Column("id", String(80), primary_key=True),
    Column("queues", JSON, nullable=False),
    Column("device", String(40), nullable=False),
    Column("started_at", Float, nullable=False),
    Column("seen_at", Float, nullable=False),
)

idempotency = Table(
    "idempotency_keys",
    metadata,
    Column("workspace", ID, ForeignKey("workspaces.id"), primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("request_sha256", SHA256, nullable=False),
    Column("answer", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
    Index(None, "created_at"),
)

chores = Table(
    "chores",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("done_at", Float, nullable=False),
    Column("note", String(100), nullable=False),
)
