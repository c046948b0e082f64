"""Comparison of a database's schema with the schema that this program expects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from service.errors import Invalid
from service.storage import run_tables  # noqa: F401 - registers its tables in the metadata
from service.storage.database import Database
from service.storage.tables import metadata

SHOWN = 3


def check_schema(database: Database, revision: str) -> None:
    """Raise Invalid if the schema of a database at the newest revision is not as expected."""
    found = differences(database)
    if not found:
        return
    more = f" and {len(found) - SHOWN} more differences" if len(found) > SHOWN else ""
    raise Invalid(
        "schema_differs",
        f"the database is marked as revision {revision}, but {'; '.join(found[:SHOWN])}"
        f"{more}. Its tables were changed by hand, or created by a version of the service that was "
        "never released. Restore a backup, or change the tables to the expected schema; see "
        "docs/how-to/upgrade.md, 'If the schema differs'",
    )


def differences(database: Database) -> list[str]:
    """Describe each difference between a database's tables and the expected schema.

    Tables of other programs, additional indexes and constraints, and additional columns that an
    INSERT may omit are harmless, and are not reported.
    """
    with database.unlimited.connect() as connection:
        options = {"include_name": _is_ours, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        found = compare_metadata(context, metadata)
    return [clause for one in _flat(found) if (clause := _clause(one))]


def _is_ours(name: str | None, kind: str, _parents: Any) -> bool:
    return kind != "table" or name in metadata.tables


def _flat(found: Iterable[Any]) -> Iterable[tuple[Any, ...]]:
    """Flatten the changes, because Alembic nests the changes of one column in a list."""
    for one in found:
        yield from one if isinstance(one, list) else [one]


def _clause(change: tuple[Any, ...]) -> str | None:
    match change:
        case ("add_table", table):
            return f"the table {table.name} is missing"
        case ("add_column", _, table, column):
            return f"the table {table} lacks the column {column.name}"
        case ("add_index", index):
            return f"the table {index.table.name} lacks the index {index.name}"
        case ("add_constraint" | "add_fk", constraint):
            return f"the table {constraint.table.name} lacks the constraint {constraint.name}"
        case ("modify_nullable", _, table, column, _, was, wanted) if was != wanted:
            rule = "is NOT NULL" if was is False else "allows NULL"
            return f"the column {column} of the table {table} {rule}"
        case ("modify_type", _, table, column, _, was, wanted):
            return f"the column {column} of the table {table} is {was!r}, not {wanted!r}"
        case ("remove_column", _, table, column):
            if not column.nullable and column.server_default is None:
                return f"the table {table} has an additional column {column.name} that must be set"
    return None
