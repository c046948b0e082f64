"""The built documentation site: no page shows Markdown or Sphinx markup as text."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SKIPPED = {"script", "style", "svg"}
LITERAL = {"code", "pre"}
# a fence that is not closed or has an unknown tag, a heading that is not one, a Sphinx role,
# a link or a table that is not rendered
MARKUP = re.compile(
    r"```|~~~|^#{1,6} \w|:(?:meth|class|func|mod|attr|data|ref):|\]\(|^\| .*\|$", re.M
)
# code blocks that begin like a page: a fence swallowed the text between two blocks
PROSE_IN_CODE = re.compile(r"^(?:```|#{2,6} \w)", re.M)


class PageText(HTMLParser):
    """The text of a page, outside code and in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.prose, self.code = "", ""
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in SKIPPED | LITERAL:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if not SKIPPED & {*self._open}:
            if LITERAL & {*self._open}:
                self.code += data
            else:
                self.prose += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, timeout=300)
    return folder


def shown_markup(html: str) -> list[str]:
    """Return the markup that a page shows as text, with some of the text around it."""
    page = PageText(html)
    found = [(page.prose, one) for one in MARKUP.finditer(page.prose)]
    found += [(page.code, one) for one in PROSE_IN_CODE.finditer(page.code)]
    return [text[max(0, one.start() - 30) : one.end() + 30] for text, one in found]


def test_no_page_shows_markup_as_text(site: Path) -> None:
    pages = {str(path.relative_to(site)): path.read_text() for path in site.rglob("*.html")}
    assert len(pages) > 40
    strange = {name: found for name, html in pages.items() if (found := shown_markup(html))}
    assert strange == {}


def test_blocks_with_a_title_are_code(site: Path) -> None:
    page = (site / "how-to/train.html").read_text()
    assert page.count("<h2 id=") == len(
        re.findall(r"^## ", (ROOT / "docs/how-to/train.md").read_text(), re.M)
    )
    for name in ("train_lightning.py", "train_transformers.py"):
        assert f'<span class="filename">{name}</span>' in page


@pytest.mark.parametrize(
    "html",
    [
        "<p>```python lightning import calibrd</p>",
        "<pre><code>def a(): ...\n## Hugging Face Trainer\n</code></pre>",
        "<p>Use :meth:<code>from_probabilities</code></p>",
    ],
)
def test_markup_that_was_once_shown_is_found(html: str) -> None:
    assert shown_markup(html)


def test_the_reference_of_the_sdk_shows_results_and_constructors(site: Path) -> None:
    page = PageText((site / "reference/calibrd.html").read_text())
    text = page.prose + page.code
    assert "Flow[" not in text
    assert "Client(\n    url: str | None = None" in text
    assert "CalibratedModel(\n    estimator: Any" in text
