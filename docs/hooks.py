"""Hooks for mkdocs: pages from files of the repository or from notebooks, and lists of classes.

A page next to a notebook of the same name shows that notebook with its outputs.
``<!-- api:methods -->`` and ``<!-- api:losses -->`` become the reference of all methods and losses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from calibrators import all_methods
from calibrators.losses.registry import all_losses

ROOT = Path(__file__).parents[1]
# page of the site: file of the repository
PAGES = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}
LISTS: dict[str, Callable[[], dict[str, type]]] = {"methods": all_methods, "losses": all_losses}
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#:]*)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of a page, from its file or with the lists of classes filled in."""
    name = PAGES.get(page.file.src_uri)
    if name is not None:
        return site_links((ROOT / name).read_text(encoding="utf-8"))
    notebook = Path(page.file.abs_src_path).with_suffix(".ipynb")
    if notebook.exists():
        return notebook_text(json.loads(notebook.read_text(encoding="utf-8")))
    return re.sub(r"<!-- api:(\w+) -->", lambda found: _api(LISTS[found[1]]().values()), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Return the page with columns aligned by a class: /help forbids inline styles."""
    return html.replace('style="text-align: right;"', 'class="right"')


def site_links(text: str) -> str:
    """Rewrite links relative to the repository as links relative to the root of the site.

    Links to files that the site does not have become plain text.
    """
    pages = {file: page for page, file in PAGES.items()}

    def replaced(found: re.Match[str]) -> str:
        label, path, anchor = found[1], found[2], found[3] or ""
        if not path:
            return found[0]
        if path in pages:
            return f"[{label}]({pages[path]}{anchor})"
        if path.startswith("docs/") and path.endswith(".md"):
            return f"[{label}]({path.removeprefix('docs/')}{anchor})"
        return label

    return _LINK.sub(replaced, text)


def notebook_text(notebook: dict[str, Any]) -> str:
    """Return a notebook as Markdown: its text, its code, and what the code printed."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        printed = "".join(_printed(one) for one in cell["outputs"]).rstrip()
        if printed:
            parts.append(f"```text\n{printed}\n```")
    return "\n\n".join(parts)


def _printed(output: dict[str, Any]) -> str:
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", ()))


def _api(classes: Iterable[type]) -> str:
    return "\n".join(f"::: {one.__module__}.{one.__qualname__}" for one in classes)
