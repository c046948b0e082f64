"""Alembic's environment: run the migrations on the engine that the caller passes."""

from __future__ import annotations

from typing import Any

from alembic import context

from service.storage import run_tables  # noqa: F401 - adds its tables to the metadata
from service.storage.tables import metadata


def _is_ours(name: str | None, type_: str, _parents: Any) -> bool:
    return type_ != "table" or name in metadata.tables


with context.config.attributes["engine"].connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        include_name=_is_ours,
        render_as_batch=connection.dialect.name == "sqlite",
        version_table=context.config.attributes["version_table"],
    )
    with context.begin_transaction():
        context.run_migrations()
    connection.commit()
