"""Base class of all repositories, and the database's clock."""

from __future__ import annotations

import json
import operator
import secrets
from collections.abc import Iterable
from functools import reduce
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Executable, Float, LargeBinary, Select, Text, cast, func
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.functions import FunctionElement

Record = TypeVar("Record")

# size of the JSON of one page; as Python objects it may take twenty times as much memory
PAGE_BYTES = 1 << 19
# estimated size of a row without its strings
ROW_BYTES = 256
# block size of a file system: a small file takes one block
FILE_BYTES = 4096
DELETE_BATCH = 1000  # old rows deleted per transaction, while other writers wait
DUPLICATE_SQLITE = ("SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY")
DUPLICATE_POSTGRESQL = "23505"


class now(FunctionElement[float]):
    """Seconds since 1970 by the database's clock, so that all machines agree."""

    type = Float()
    inherit_cache = True


@compiles(now, "sqlite")
def _now_sqlite(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now, "postgresql")
def _now_postgresql(*_: Any, **__: Any) -> str:
    return "extract(epoch from clock_timestamp())::double precision"


class After(NamedTuple):
    """Cursor into a list sorted newest first: the next page starts after it."""

    created_at: float
    id: str


class JsonText(str):
    """Serialised JSON, which a JSON column stores as it is."""

    __slots__ = ()


def as_json(value: Any) -> str:
    """Return a value of a JSON column as text.

    >>> as_json({"a": 1}), as_json(JsonText('{"a":1}'))
    ('{"a": 1}', '{"a":1}')
    """
    return value if isinstance(value, JsonText) else json.dumps(value)


def json_bytes(*values: Any) -> int:
    """Estimate the size in bytes of a row with these values in JSON or text columns.

    >>> json_bytes({"a": "b"}) == ROW_BYTES + 10
    True
    """
    texts = (one if isinstance(one, JsonText) else json.dumps(one, default=str) for one in values)
    return ROW_BYTES + sum(map(len, texts))


class Repository:
    """All SQL for one kind of object, inside the session's transaction."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def _one(self, record: type[Record], statement: Executable) -> Record | None:
        row = self.session.execute(statement).mappings().one_or_none()
        return None if row is None else record(**row)

    def _all(self, record: type[Record], statement: Executable) -> list[Record]:
        rows = self.session.execute(statement).mappings()
        return [record(**row) for row in rows]

    def _affordable(self, page: Select[Any], *columns: ColumnElement[Any]) -> int:
        """Return how many rows (at least one) fit on a page, given the size of these columns."""
        size = self._size(*columns)
        found = self.session.scalars(page.with_only_columns(size, maintain_column_froms=True))
        return page_length(found, PAGE_BYTES)

    def _size(self, *columns: ColumnElement[Any]) -> ColumnElement[int]:
        """Return the total size of columns as text, in bytes."""
        sizes = (func.coalesce(self._octets(cast(one, Text)), 0) for one in columns)
        return reduce(operator.add, sizes)

    def _octets(self, text: ColumnElement[str]) -> ColumnElement[int]:
        """Return the length of a string in bytes; SQLite has ``octet_length`` only since 3.43."""
        if self.session.get_bind().dialect.name == "sqlite":
            return func.length(cast(text, LargeBinary))
        return func.octet_length(text)

    def _one_if_unique(self, record: type[Record], statement: Executable) -> Record | None:
        """Return the row that a statement writes; None if it violates a unique constraint."""
        try:
            with self.session.begin_nested():
                return self._one(record, statement)
        except IntegrityError as error:
            if _is_duplicate(error):
                return None
            raise

    def _execute(self, statement: Executable) -> int:
        """Execute a statement; return the number of rows that it changed."""
        return int(self.session.execute(statement).rowcount)  # type: ignore[attr-defined]


def page_length(sizes: Iterable[int], most: int) -> int:
    """Return how many items (at least one) fit on a page of total size ``most``.

    >>> page_length([2, 2, 2], most=5), page_length([9, 1], most=5)
    (2, 1)
    """
    return max(1, sum(total <= most for total in accumulate(sizes)))


def _is_duplicate(error: IntegrityError) -> bool:
    """Return whether a database error is a violation of a unique constraint."""
    name = getattr(error.orig, "sqlite_errorname", "")
    return name in DUPLICATE_SQLITE or getattr(error.orig, "sqlstate", None) == DUPLICATE_POSTGRESQL


def new_id(prefix: str) -> str:
    """Return a random id of 80 bits such as ``fit_4f2c...``."""
    return f"{prefix}_{secrets.token_hex(10)}"
