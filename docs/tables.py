"""Write the tables of README.md and docs/ from the code: ``make docs-tables``.

A table stands between ``<!-- table:NAME -->`` and ``<!-- end -->``. With ``--check`` nothing is
written: files whose tables are not current are named, and the exit status is 1.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path

from calibrators import all_methods
from calibrators.error_codes import ERROR_CODES
from calibrators.losses import Loss
from calibrators.losses.registry import all_losses
from calibrators.metrics.catalogue import all_metrics
from calibrators.registry import all_maps
from calibrators.report.verdict import Verdict
from calibrd.api import Calls
from service.app import create_app
from service.datasets.formats import all_codecs
from service.settings import PREFIX, Settings

ROOT = Path(__file__).parents[1]
REGION = re.compile(r"(<!-- table:([\w-]+) -->\n).*?(<!-- end -->)", re.S)
KEEPS_CLASS = {True: "yes", False: "no", None: "its base's"}


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; bars in cells are escaped."""
    lines = [_line(head), f"|{'---|' * len(head)}", *map(_line, rows)]
    return "".join(f"{line}\n" for line in lines)


def _line(cells: Sequence[object]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in map(_escaped, cells))


def _escaped(cell: object) -> str:
    return str(cell).replace("|", "\\|")


def names(given: Iterable[str]) -> str:
    """Return names as code, with commas between them."""
    return ", ".join(f"`{one}`" for one in given)


def methods() -> str:
    """The methods, their parameters, whether they keep the predicted class, and their cost."""
    rows = []
    for name, recipe in all_methods().items():
        map_kind = all_maps().get(name)
        kept = KEEPS_CLASS[map_kind.keeps_class] if map_kind else "the winner's"
        parameters = names(field.name for field in fields(recipe)) or "none"
        rows.append((f"`{name}`", recipe.summary, parameters, kept, recipe.cost))
    return table(("name", "what it does", "parameters", "class kept", "cost"), rows)


def verdicts() -> str:
    """The verdicts of a report."""
    return table(("verdict", "meaning"), ((f"`{one}`", one.meaning) for one in Verdict))


def metrics() -> str:
    """The metrics of a report."""
    rows = (
        (f"`{one.name}`", one.title, "no" if one.interval is None else "yes", one.meaning)
        for one in all_metrics().values()
    )
    return table(("name", "title", "interval", "meaning"), rows)


def losses() -> str:
    """The training losses and their own parameters."""
    of_all = Loss.hyper_parameters()
    rows = (
        (
            f"`{name}`",
            loss.summary,
            names(one for one in loss.hyper_parameters() if one not in of_all),
        )
        for name, loss in all_losses().items()
    )
    return table(("name", "what it does", "parameters"), rows)


def formats() -> str:
    """The formats in which arrays travel."""
    rows = ((one.format, names(one.media_types), one.holds) for one in all_codecs().values())
    return table(("format", "media types", "holds"), rows)


def calls() -> str:
    """The calls of the SDK's client, with the first lines of their docstrings."""
    found = {
        name: str(one.__doc__).partition("\n")[0].replace("``", "`")
        for kind in reversed(Calls.__mro__)
        for name, one in vars(kind).items()
        if hasattr(one, "flow")
    }
    return table(("call", ""), ((f"`{name}`", told) for name, told in sorted(found.items())))


def settings() -> str:
    """The settings of the service."""
    rows = []
    for name, one in Settings.model_fields.items():
        default = "empty" if one.default == "" else f"`{one.default}`"
        rows.append((f"`{PREFIX}{name.upper()}`", default, one.description))
    return table(("variable", "default", "meaning"), rows)


def error_codes() -> str:
    """The error codes."""
    rows = (
        (f"`{code}`", row.status or "", row.meaning, row.hint) for code, row in ERROR_CODES.items()
    )
    return table(("code", "status", "meaning", "what to do"), rows)


def routes() -> str:
    """The routes of the API, from its OpenAPI document."""
    with tempfile.TemporaryDirectory() as folder:
        paths = create_app(Settings(data_dir=Path(folder), workers=0)).openapi()["paths"]
    rows = (
        (f"`{method.upper()} {path}`", operation["summary"])
        for path, operations in paths.items()
        for method, operation in operations.items()
        if method != "parameters"
    )
    return table(("route", "what it does"), rows)


def make_targets() -> str:
    """The targets of the Makefile that ``make help`` lists."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    rows = re.findall(r"^([a-z-]+):.*?## (.+)$", text, re.M)
    return table(("command", "what it does"), ((f"`make {name}`", told) for name, told in rows))


TABLES: dict[str, Callable[[], str]] = {
    "methods": methods,
    "verdicts": verdicts,
    "metrics": metrics,
    "losses": losses,
    "formats": formats,
    "calls": calls,
    "settings": settings,
    "error-codes": error_codes,
    "routes": routes,
    "make-targets": make_targets,
}


def filled(text: str) -> str:
    """Return a document with its tables written anew."""
    return REGION.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


def main(check: bool) -> int:
    """Write the tables, or name the files whose tables are not current."""
    stale = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            stale.append(path.relative_to(ROOT))
            if not check:
                path.write_text(new, encoding="utf-8")
    for one in stale:
        sys.stderr.write(f"{one}: {'not current: make docs-tables' if check else 'written'}\n")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
