"""Store the names of segments in datasets and reports."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

REPORTS = sa.table(
    "reports",
    sa.column("calibrator", sa.String()),
    sa.column("number", sa.Integer()),
    sa.column("document", sa.JSON()),
)
FIELDS = {"groups": "segments", "by_group": "by_segment"}


def upgrade() -> None:
    op.alter_column("datasets", "groups", new_column_name="segments")
    _rename(FIELDS, report_format=2)


def downgrade() -> None:
    _rename({new: old for old, new in FIELDS.items()}, report_format=1)
    op.alter_column("datasets", "segments", new_column_name="groups")


def _rename(names: dict[str, str], report_format: int) -> None:
    """Rename fields of all stored reports, one report at a time: they are large."""
    connection = op.get_bind()
    reports = REPORTS.c
    for calibrator, number in connection.execute(
        sa.select(reports.calibrator, reports.number)
    ).all():
        is_it = (reports.calibrator == calibrator) & (reports.number == number)
        stored = connection.execute(sa.select(reports.document).where(is_it)).scalar_one()
        document = {names.get(name, name): value for name, value in stored.items()}
        document["format"] = report_format
        connection.execute(sa.update(REPORTS).where(is_it).values(document=document))
