"""Every raised code is in the table of codes, and every code in the table is raised."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import service.errors
from calibrators.error_codes import ERROR_CODES
from calibrd.errors import CalibrdError

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "calibrators/error_codes.py"
# usage errors of the command line, whose hints are given where they are raised
LEFT_OUT = ("CommandError", "NotWritten")
STATUSES = {
    "Malformed": 400,
    "Unauthenticated": 401,
    "Forbidden": 403,
    "NotFound": 404,
    "NotAcceptable": 406,
    "TooSlow": 408,
    "Conflict": 409,
    "Stale": 412,
    "TooLarge": 413,
    "Unsupported": 415,
    "Invalid": 422,
    "TooMany": 429,
    "Unusable": 500,
    "Damaged": 500,
    "BlobMissing": 500,
    "BlobCorrupt": 500,
    "Unavailable": 503,
    "NoSpace": 507,
    "DatabaseDamaged": 503,
}


@functools.cache
def sources() -> dict[Path, ast.Module]:
    return {
        path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8"))
        for package in ("calibrators", "calibrd", "service")
        for path in (ROOT / package).rglob("*.py")
        if path != TABLE
    }


def parameter_places(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Return the functions and classes that take a ``code``, and the position of that argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names = [one.arg for one in node.args.args]
            if "code" in names and names[0] not in ("self", "cls"):
                yield node.name, names.index("code")
        elif isinstance(node, ast.ClassDef):
            for place, one in enumerate(_fields(node)):
                if one == "code":
                    yield node.name, place


def _fields(node: ast.ClassDef) -> list[str]:
    """Return the arguments of a class: those of ``__init__``, or the fields of a dataclass."""
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            return [argument.arg for argument in one.args.args[1:]]
    if not node.decorator_list:
        return []
    return [one.target.id for one in node.body if isinstance(one, ast.AnnAssign)]  # type: ignore[union-attr]


@functools.cache
def places() -> dict[str, int]:
    """Return the position of the argument ``code``, by the name of the function or class."""
    found = {name: at for tree in sources().values() for name, at in parameter_places(tree)}
    parents = {
        node.name: [getattr(base, "id", getattr(base, "attr", "")) for base in node.bases]
        for tree in sources().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name not in found and not _fields(node)
    }
    while heirs := [name for name in parents if set(parents[name]) & set(found)]:
        for name in heirs:
            found[name] = next(found[base] for base in parents.pop(name) if base in found)
    return {name: at for name, at in found.items() if name not in LEFT_OUT}


def raised_in(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Return the literal codes in a source file: the name called, the code, and the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            place = places().get(name, len(node.args))
            code = node.args[place] if place < len(node.args) else None
            if isinstance(code, ast.Constant) and isinstance(code.value, str):
                yield name, code.value, node.lineno


@functools.cache
def raised() -> list[tuple[Path, str, str, int]]:
    return [(path, *found) for path, tree in sources().items() for found in raised_in(tree)]


def texts_in(tree: ast.AST) -> Iterator[str]:
    """Return all strings in a source file, except those used in comparisons."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif not isinstance(node, ast.Compare):
            yield from texts_in(node)


def test_calls_that_raise_are_found() -> None:
    assert {"DataError": 0, "reject_rows": 1, "Problem": 0, "Stale": 0}.items() <= places().items()
    tree = ast.parse('raise errors.Invalid("made_up", "...")\nreject_rows(rows, "odd", "...")')
    assert list(raised_in(tree)) == [("Invalid", "made_up", 1), ("reject_rows", "odd", 2)]
    assert set(texts_in(ast.parse('f("a") if code == "b" else ["c"]'))) == {"a", "c"}
    assert len(raised()) > 400


def test_every_code_that_is_raised_is_in_the_table() -> None:
    assert [one for one in raised() if one[2] not in ERROR_CODES] == []


def test_every_code_of_the_table_is_raised() -> None:
    used = {text for tree in sources().values() for text in texts_in(tree)}
    assert [code for code in ERROR_CODES if code not in used] == []


def test_errors_of_the_service_are_of_the_kind_of_their_status() -> None:
    kinds = [
        one
        for one in vars(service.errors).values()
        if isinstance(one, type) and one.__module__ == service.errors.__name__
    ]
    assert {one.__name__ for one in kinds} == {*STATUSES, "ServiceError"}
    for path, kind, code, line in raised():
        if path.parts[0] == "service" and (kind in STATUSES or kind == "ServiceError"):
            status = ERROR_CODES[code].status
            assert status == STATUSES.get(kind, status), f"{path}:{line}: {code}"
            assert status is not None, f"{path}:{line}: {code} has no status"


def kinds_of_the_sdk(kind: type[CalibrdError] = CalibrdError) -> Iterator[type[CalibrdError]]:
    for one in kind.__subclasses__():
        yield one
        yield from kinds_of_the_sdk(one)


def test_errors_of_the_sdk_have_codes_of_the_table() -> None:
    codes = [kind.code for kind in kinds_of_the_sdk() if "code" in vars(kind)]
    assert len(codes) > 5
    assert set(codes) <= set(ERROR_CODES)


def test_rows_are_sorted_and_short() -> None:
    assert list(ERROR_CODES) == sorted(ERROR_CODES)
    for code, row in ERROR_CODES.items():
        assert row.meaning.endswith("."), code
        assert not row.page or row.page.endswith("."), code
        for hint in (row.hint, row.command):
            assert len(hint) < 120, code
            assert not hint.endswith("."), code
