"""A report as a self-contained HTML page without scripts, for light and dark themes."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

from calibrators import charts
from calibrators.charts import theme
from calibrators.fitting.fallback import fallback_sentence
from calibrators.report import html_tables, text

if TYPE_CHECKING:
    from calibrators.report.report import Report

Draw = Callable[[theme.Spec], str]
NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'

LIGHT = f"""color-scheme: light; --paper: #fff; --ink: {theme.INK}; --muted: {theme.MUTED};
  --rule: {theme.RULE}; --band: {theme.BAND}; --accent: {theme.ACCENT}; --bars: {theme.BARS};
  --good: #1f7a4d; --bad: #b3362b; --mixed: #96660a;"""
DARK = """color-scheme: dark; --paper: #15191d; --ink: #e4e8ec; --muted: #9aa6b1;
  --rule: #2d353c; --band: #313a42; --accent: #74aee6; --bars: #66727d;
  --good: #5cc492; --bad: #f08a7e; --mixed: #dfb35a;"""
TEXT = """background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", Arial, sans-serif; font-variant-numeric: tabular-nums;"""
PIECES = f"""
* {{ box-sizing: border-box; }}
h1 {{ font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.1rem; margin: 2.5rem 0 .75rem; }}
p {{ margin: .25rem 0; max-width: 46rem; }}
.muted, caption, th, small {{ color: var(--muted); }}
.badge {{ display: inline-block; padding: .1rem .7rem; margin-right: .6rem; border-radius: 1rem;
  border: 1px solid currentColor; font-weight: 600; white-space: nowrap; }}
.improved {{ color: var(--good); }} .worse, .at_chance {{ color: var(--bad); }}
.trade_off {{ color: var(--mixed); }}
.no_measurable_change, .insufficient_data {{ color: var(--muted); }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .92rem; }}
caption {{ text-align: left; padding-bottom: .5rem; }}
th, td {{ padding: .3rem .9rem .3rem 0; text-align: right; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }}
th {{ font-weight: normal; }} tbody th {{ color: var(--ink); white-space: normal;
  min-width: 6rem; max-width: 24rem; overflow-wrap: anywhere; }}
thead th {{ white-space: normal; vertical-align: bottom; }}
th:first-child, td:first-child {{ text-align: left; }}
td small {{ display: block; font-size: .8rem; }}
.charts {{ display: flex; flex-wrap: wrap; gap: 1rem 1.5rem; align-items: flex-end; }}
svg {{ max-width: 100%; height: auto; }}
svg [fill="{theme.INK}"] {{ fill: var(--ink); }}
svg [stroke="{theme.INK}"] {{ stroke: var(--ink); }}
svg [fill="{theme.MUTED}"] {{ fill: var(--muted); }}
svg [stroke="{theme.MUTED}"] {{ stroke: var(--muted); }}
svg [stroke="{theme.RULE}"] {{ stroke: var(--rule); }}
svg [fill="{theme.BAND}"] {{ fill: var(--band); }}
svg [fill="{theme.BARS}"] {{ fill: var(--bars); }}
svg [fill="{theme.ACCENT}"] {{ fill: var(--accent); }}
svg [stroke="{theme.ACCENT}"] {{ stroke: var(--accent); }}
abbr {{ text-decoration: underline dotted var(--muted); text-underline-offset: .2em; }}
summary {{ cursor: pointer; padding: .3rem 0; }}
dl {{ display: grid; grid-template-columns: minmax(6rem, 9rem) 1fr; gap: .5rem 1rem; margin: 0;
  font-size: .92rem; }}
dt {{ color: var(--muted); }} dd {{ margin: 0; min-width: 0; overflow-wrap: anywhere; }}
"""
STYLE = f"""
:root {{ {LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}
body {{ {TEXT} margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 4rem; }}
{PIECES}
@media (max-width: 34rem) {{ th, td {{ padding-right: .5rem; }}
  tbody th {{ white-space: normal; min-width: 7rem; }} table {{ font-size: .8rem; }}
  dl {{ grid-template-columns: 1fr; gap: .1rem; }}
  dd {{ margin-bottom: .6rem; }} }}
"""


def render(report: Report, *, title: str = "Calibration report", draw: Draw = charts.to_svg) -> str:
    """Return the HTML page of a report; all strings are escaped.

    ``draw`` renders a chart as SVG.
    """
    diagrams = drawn(reliability(report), draw)
    sections = [
        ("Metrics", html_tables.metrics(report) + html_tables.definitions(report)),
        ("Reliability", diagrams + html_tables.reliability(report)),
        ("By margin", drawn(_thirds(report), draw)),
    ]
    if report.temperatures:
        curve = drawn([charts.temperatures(report)], draw)
        sections.append(("Temperature by margin", curve + html_tables.temperatures(report)))
    if report.by_segment:
        sections.append(("By segment", html_tables.segments(report)))
    sections += [
        ("By class", html_tables.classes(report)),
        ("Conventions", html_tables.facts(report.conventions)),
    ]
    if report.fit:
        sections.append(("Fit", html_tables.facts(report.fit)))
    body = "\n".join(
        f"<section><h2>{escape(heading)}</h2>{content}</section>" for heading, content in sections
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>"
        f"<header><h1>{escape(title)}</h1>{header(report)}</header>\n{body}\n</body></html>\n"
    )


def header(report: Report) -> str:
    """Return the header of a report: the judged rows and the verdict."""
    lines = f'<p class="muted">{escape(text.heading(report))}</p>'
    if fallback := fallback_sentence(report.fit):
        lines += f"<p><strong>{escape(fallback)}</strong></p>"
    if report.verdict is None:
        warning = f"Warning: {report.chance_warning}." if report.is_at_chance else ""
        return f"{lines}<p><strong>{escape(warning)}</strong></p>" if warning else lines
    name = report.verdict.value
    badge = f'<span class="badge {name}">{escape(name.replace("_", " "))}</span>'
    return f"{lines}<p>{badge}{escape(report.verdict_sentence)}</p>"


def reliability(report: Report) -> list[theme.Spec]:
    """Return the reliability diagram of each side."""
    return [charts.reliability(report, sides=(name,)) for name in report.sides]


def _thirds(report: Report) -> list[theme.Spec]:
    return [charts.margin_panels(report, thirds=(third.name,)) for third in report.by_margin]


def drawn(specs: list[theme.Spec], draw: Draw = charts.to_svg) -> str:
    """Return charts side by side, as transparent inline SVG."""
    images = (draw({**spec, "background": "transparent", "padding": 2}) for spec in specs)
    return f'<div class="charts">{"".join(images).replace(NAMESPACE, "")}</div>'
