"""A report as an HTML fragment for notebooks, with scoped styles for light and dark themes.

A notebook's theme can differ from the browser's, so the CSS selectors of known front ends are used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from calibrators.report import html_page, html_tables

if TYPE_CHECKING:
    from calibrators.report.report import Report

# the class is repeated to outrank the specificity of the notebook's table styles
SCOPE = ".calibrd.calibrd"
LIGHT_THEMES = ('[data-jp-theme-light="true"]', ".vscode-light", "html[theme=light]")
DARK_THEMES = ('[data-jp-theme-light="false"]', ".vscode-dark", "html[theme=dark]")


def fragment(title: str, facts: Mapping[str, Any], report: Report | None) -> str:
    """Return a title, named facts and a report as HTML; all strings are escaped."""
    body = f"<p class='title'>{escape(title)}</p>"
    if report is not None:
        body += html_page.header(report)
    if facts:
        body += html_tables.facts(facts)
    if report is not None:
        body += html_page.drawn(html_page.reliability(report)) + html_tables.metrics(report)
    return f"<style>{_style()}</style><div class='calibrd'>{body}</div>"


def scoped(css: str) -> str:
    """Return flat CSS rules, scoped to our own element.

    >>> scoped("th, td { margin: 0; }")
    '.calibrd.calibrd th, .calibrd.calibrd td { margin: 0; }'
    """
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", css)
    return "\n".join(f"{_inside(SCOPE, names.split(','))} {{{rule}}}" for names, rule in rules)


def _style() -> str:
    light, dark = (_inside_of(themes) for themes in (LIGHT_THEMES, DARK_THEMES))
    return f"""
{SCOPE} {{ {html_page.LIGHT} {html_page.TEXT}
  font-size: 14px; padding: .75rem 1rem; max-width: 62rem; }}
@media (prefers-color-scheme: dark) {{ {SCOPE} {{ {html_page.DARK} }} }}
{light} {{ {html_page.LIGHT} }}
{dark} {{ {html_page.DARK} }}
{scoped(html_page.PIECES)}
{SCOPE} .title {{ font-size: 1.2rem; font-weight: 600; overflow-wrap: anywhere; }}
{SCOPE} dl, {SCOPE} .charts, {SCOPE} .scroll {{ margin: 1rem 0 0; }}
{SCOPE} table {{ margin: 0; border: 0; }}
{SCOPE} tbody tr, {SCOPE} thead tr, {SCOPE} tbody tr:nth-child(n) {{ background: none; border: 0; }}
{SCOPE} thead {{ border: 0; }}
"""


def _inside(scope: str, names: list[str]) -> str:
    return ", ".join(f"{scope} {name.strip()}" for name in names)


def _inside_of(themes: tuple[str, ...]) -> str:
    return ", ".join(f"{theme} {SCOPE}" for theme in themes)
