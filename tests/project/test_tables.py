"""docs/tables.py generates the tables of the documentation and detects stale ones."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from calibrators.error_codes import ERROR_CODES
from service.settings import Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs/tables.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_every_table_is_in_one_document(tables: ModuleType) -> None:
    documents = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
    named = [name for path in documents for _, name, _ in tables.REGION.findall(path.read_text())]
    assert sorted(named) == sorted(tables.TABLES)


def test_stale_tables_are_named_and_written(
    tables: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    (tmp_path / "docs/how-to").mkdir(parents=True)
    for name in ("README.md", "CONTRIBUTING.md"):
        (tmp_path / name).write_text("# Without tables\n")
    guide = tmp_path / "docs/how-to/guide.md"
    guide.write_text("Before\n<!-- table:settings -->\nold\n<!-- end -->\nafter\n")
    assert tables.main(check=True) == 1
    assert capsys.readouterr().err == "docs/how-to/guide.md: out of date: run make docs-tables\n"
    assert tables.main(check=False) == 0
    assert tables.main(check=True) == 0
    before, *lines, after = guide.read_text().splitlines()
    assert (before, after) == ("Before", "after")
    assert len(lines) == len(Settings.model_fields) + 4
    assert "| `CALIBRD_DATABASE_URL` | empty | " in guide.read_text()


def test_an_unknown_table_name_is_an_error(tables: ModuleType) -> None:
    with pytest.raises(KeyError, match="metrcs"):
        tables.filled("<!-- table:metrcs -->\n<!-- end -->")


def test_cells(tables: ModuleType) -> None:
    assert tables.table(("a", "b"), [("x | y", ""), (1, "z")]) == (
        "| a | b |\n|---|---|\n| x \\| y | |\n| 1 | z |\n"
    )
    assert len(re.findall(r"^\| `", tables.error_codes(), re.M)) == len(ERROR_CODES)
    assert "| `GET /v1/methods` |" in tables.routes()
    assert "| `make check` |" in tables.make_targets()
