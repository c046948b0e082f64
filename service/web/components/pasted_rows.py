"""Parsing of rows that a user types or pastes in any common notation."""

from __future__ import annotations

import re

import numpy as np

from service.datasets.formats import json_text
from service.datasets.formats.npy import Array
from service.errors import Invalid, Malformed, TooLarge
from service.http import json_body

MAX_ROWS = 20
SHOWN = 40

_BETWEEN = re.compile(r"[\s,;]+")
_EMPTY = re.compile(r"[,;]\s*[,;]|^[,;]")


def rows_of(text: str, classes: int) -> Array:
    r"""Parse rows (n, k) from JSON, printed numpy arrays, or numbers with separators.

    Each line is a row, unless all lines together form one row with one number per class. For two
    classes, rows may also have one number, as in predict calls.

    >>> rows_of("1 2 3\n4, 5, 6", 3).tolist()
    [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    >>> rows_of("[[1 2]\n [3 4]]", 2).tolist() == rows_of("[[1, 2], [3, 4]]", 2).tolist()
    True
    """
    text = text.strip()
    if not text:
        raise Invalid("no_rows", "enter a row of numbers, or use an example")
    rows = _json(text)
    if rows is None:
        rows = _lines(text, classes)
    if len(rows) > MAX_ROWS:
        raise TooLarge(
            "too_many_rows",
            f"this page shows at most {MAX_ROWS} rows, got {len(rows)}: "
            "use the predict API for more",
        )
    return rows


def _json(text: str) -> Array | None:
    """Parse the rows of a JSON list; return None if the text is not one."""
    if not text.startswith("["):
        return None
    try:
        document = json_body.parse(text.encode(errors="replace"))
    except Malformed:
        return None
    found = json_text.numbers("values", document)
    return found if found.ndim == 2 else found[np.newaxis]


def _lines(text: str, classes: int) -> Array:
    is_printed = text.startswith("[")
    pieces = text.replace("[", " ").split("]") if is_printed else text.splitlines()
    rows = [_numbers(one, number) for number, one in enumerate(filter(_has_words, pieces), 1)]
    widths = {len(row) for row in rows}
    allowed = {classes} | ({1} if classes == 2 else set())
    if len(widths) == 1 and widths <= allowed:
        return np.array(rows)
    if sum(map(len, rows)) == classes:
        return np.array([[one for row in rows for one in row]])
    place, row = next((one for one in enumerate(rows, 1) if len(one[1]) != classes), (1, []))
    raise Invalid(
        "wrong_classes",
        f"a row must have {classes} numbers, one per class, but row {place} has {len(row)}",
        expected=classes,
        got=len(row),
    )


def _has_words(text: str) -> bool:
    return bool(_BETWEEN.sub("", text))


def _numbers(text: str, row: int) -> list[float]:
    found = []
    if _EMPTY.search(text.strip()):
        raise Invalid("empty_number", f"row {row}: a value is missing before a comma or semicolon")
    for word in filter(None, _BETWEEN.split(text)):
        try:
            if "_" in word:
                raise ValueError(word)
            found.append(float(word))
        except ValueError as error:
            raise Invalid("not_a_number", f"row {row}: {word[:SHOWN]!r} is not a number") from error
    return found


def example_row(classes: int, kind: str) -> str:
    """Return a fixed example row, in which one class is likely but not certain.

    >>> example_row(3, "logits"), example_row(2, "probabilities")
    ('0.13, 3.60, 0.64', '0.0444715, 0.955529')
    """
    logits = np.random.default_rng(0).normal(size=classes)
    logits[classes // 3 or 1] = np.log(classes) + 2.5
    if kind == "logits":
        return ", ".join(f"{one:.2f}" for one in logits)
    shares = np.exp(logits - logits.max())
    return ", ".join(f"{one:.6g}" for one in shares / shares.sum())
