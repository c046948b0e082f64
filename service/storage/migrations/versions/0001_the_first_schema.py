"""Create the first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "fit_workers",
        sa.Column("id", sa.String(length=80), nullable=False),
        sa.Column("queues", sa.JSON(), nullable=False),
        sa.Column("device", sa.String(length=40), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fit_workers")),
    )
    op.create_table(
        "workspaces",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workspaces")),
        sa.UniqueConstraint("name", name=op.f("uq_workspaces_name")),
    )
    op.create_table(
        "calibrators",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("workspace", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("last_version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace"], ["workspaces.id"], name=op.f("fk_calibrators_workspace")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_calibrators")),
        sa.UniqueConstraint("workspace", "name", name=op.f("uq_calibrators_workspace_name")),
    )
    op.create_table(
        "datasets",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("workspace", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("format", sa.String(length=16), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column("classes", sa.Integer(), nullable=True),
        sa.Column("delete_after_fit", sa.Boolean(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace"], ["workspaces.id"], name=op.f("fk_datasets_workspace")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_datasets")),
        sa.UniqueConstraint(
            "workspace", "sha256", "kind", name=op.f("uq_datasets_workspace_sha256_kind")
        ),
    )
    with op.batch_alter_table("datasets", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_datasets_expires_at"), ["expires_at"], unique=False)
        batch_op.create_index(
            batch_op.f("ix_datasets_workspace_created_at"),
            ["workspace", "created_at"],
            unique=False,
        )

    op.create_table(
        "idempotency_keys",
        sa.Column("workspace", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.Column("answer", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace"], ["workspaces.id"], name=op.f("fk_idempotency_keys_workspace")
        ),
        sa.PrimaryKeyConstraint("workspace", "key", name=op.f("pk_idempotency_keys")),
    )
    with op.batch_alter_table("idempotency_keys", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_idempotency_keys_created_at"), ["created_at"], unique=False
        )

    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("workspace", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.Column("revoked_at", sa.Float(), nullable=True),
        sa.Column("last_used_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["workspace"], ["workspaces.id"], name=op.f("fk_keys_workspace")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
    )
    op.create_table(
        "alias_moves",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("calibrator", sa.String(length=40), nullable=False),
        sa.Column("alias", sa.String(length=64), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("from_version", sa.Integer(), nullable=True),
        sa.Column("to_version", sa.Integer(), nullable=False),
        sa.Column("moved_by", sa.String(length=200), nullable=False),
        sa.Column("moved_at", sa.Float(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("forced", sa.Boolean(), nullable=False),
        sa.Column("rollback", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["calibrator"], ["calibrators.id"], name=op.f("fk_alias_moves_calibrator")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alias_moves")),
        sa.UniqueConstraint(
            "calibrator", "alias", "revision", name=op.f("uq_alias_moves_calibrator_alias_revision")
        ),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "aliases",
        sa.Column("calibrator", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("moved_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["calibrator"], ["calibrators.id"], name=op.f("fk_aliases_calibrator")
        ),
        sa.PrimaryKeyConstraint("calibrator", "name", name=op.f("pk_aliases")),
    )
    op.create_table(
        "dataset_parts",
        sa.Column("dataset", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["dataset"], ["datasets.id"], name=op.f("fk_dataset_parts_dataset"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("dataset", "number", name=op.f("pk_dataset_parts")),
    )
    op.create_table(
        "fits",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("workspace", sa.String(length=40), nullable=False),
        sa.Column("calibrator", sa.String(length=40), nullable=False),
        sa.Column("calibrator_name", sa.String(length=64), nullable=False),
        sa.Column("order", sa.JSON(), nullable=False),
        sa.Column("dataset", sa.String(length=40), nullable=False),
        sa.Column("evaluation", sa.String(length=40), nullable=True),
        sa.Column("queue", sa.String(length=40), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=True),
        sa.Column("device", sa.String(length=40), nullable=True),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("worker", sa.String(length=80), nullable=True),
        sa.Column("created_by", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("finished_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["calibrator"], ["calibrators.id"], name=op.f("fk_fits_calibrator")
        ),
        sa.ForeignKeyConstraint(["workspace"], ["workspaces.id"], name=op.f("fk_fits_workspace")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fits")),
    )
    with op.batch_alter_table("fits", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_fits_status"), ["status"], unique=False)
        batch_op.create_index(
            batch_op.f("ix_fits_workspace_created_at"), ["workspace", "created_at"], unique=False
        )

    op.create_table(
        "versions",
        sa.Column("calibrator", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(length=40), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=True),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("classes", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=True),
        sa.Column("dataset_sha256", sa.String(length=64), nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column("verdict", sa.String(length=40), nullable=True),
        sa.Column("fit", sa.String(length=40), nullable=True),
        sa.Column("fit_info", sa.JSON(), nullable=False),
        sa.Column("libraries", sa.JSON(), nullable=False),
        sa.Column("map_sha256", sa.String(length=64), nullable=False),
        sa.Column("map_bytes", sa.BigInteger(), nullable=False),
        sa.Column("onnx_sha256", sa.String(length=64), nullable=True),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("created_by", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["calibrator"], ["calibrators.id"], name=op.f("fk_versions_calibrator")
        ),
        sa.PrimaryKeyConstraint("calibrator", "number", name=op.f("pk_versions")),
    )
    op.create_table(
        "reports",
        sa.Column("calibrator", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["calibrator", "number"],
            ["versions.calibrator", "versions.number"],
            name=op.f("fk_reports_calibrator_number"),
        ),
        sa.PrimaryKeyConstraint("calibrator", "number", name=op.f("pk_reports")),
    )


def downgrade() -> None:
    op.drop_table("reports")
    op.drop_table("versions")
    with op.batch_alter_table("fits", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_fits_workspace_created_at"))
        batch_op.drop_index(batch_op.f("ix_fits_status"))

    op.drop_table("fits")
    op.drop_table("dataset_parts")
    op.drop_table("aliases")
    op.drop_table("alias_moves")
    op.drop_table("keys")
    with op.batch_alter_table("idempotency_keys", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_idempotency_keys_created_at"))

    op.drop_table("idempotency_keys")
    with op.batch_alter_table("datasets", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_datasets_workspace_created_at"))
        batch_op.drop_index(batch_op.f("ix_datasets_expires_at"))

    op.drop_table("datasets")
    op.drop_table("calibrators")
    op.drop_table("workspaces")
    op.drop_table("fit_workers")
