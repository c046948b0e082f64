"""The page of a version: report, origin, downloads and notes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from markupsafe import Markup

from calibrators import Report, all_methods, charts
from calibrators.fitting.fallback import fallback_sentence
from calibrators.report import html_tables
from service.access.permissions import Scope
from service.dependencies import Joined
from service.errors import Invalid, Stale
from service.http.callers import Caller, needs
from service.registry import service as versions
from service.registry.service import LONGEST_DESCRIPTION
from service.storage.records import Version
from service.web.components.forms import Sent
from service.web.components.layout import lead_to, page, pages

router = pages()

PATH = "/calibrators/{name}/versions/{number}"
SHOWN_ELSEWHERE = ("warnings", "rows", "candidates")


@dataclass(frozen=True)
class Judgement:
    """The parts of a report that the page shows: chart specifications and tables."""

    reliability: dict[str, Any]
    margins: dict[str, Any] | None
    temperatures: dict[str, Any] | None
    metrics: Markup
    definitions: Markup
    bins: Markup
    cells: Markup
    segments: Markup
    classes: Markup
    conventions: Markup

    @classmethod
    def of(cls, report: Report) -> Judgement:
        """Build the charts and tables of a report."""
        return cls(
            reliability=charts.reliability(report),
            margins=charts.margin_panels(report) if report.by_margin else None,
            temperatures=charts.temperatures(report) if report.temperatures else None,
            metrics=_trusted(html_tables.metrics(report)),
            definitions=_trusted(html_tables.definitions(report)),
            bins=_trusted(html_tables.reliability(report)),
            cells=_trusted(html_tables.temperatures(report)),
            segments=_trusted(html_tables.segments(report)),
            classes=_trusted(html_tables.classes(report)),
            conventions=_trusted(html_tables.facts(report.conventions)),
        )


@router.api_route(PATH, methods=["GET", "HEAD"])
def version_page(
    request: Request, joined: Joined, caller: Caller, name: str, number: int
) -> Response:
    """Show a version with its report."""
    with joined.database.read() as store:
        version, report = versions.judged(store, caller, name, number)
        pointing = store.aliases.all_of(version.calibrator)
    values = {
        "name": name,
        "version": version,
        "report": report,
        "judgement": None if report is None else Judgement.of(report),
        "meaning": "" if report is None else report.verdict_sentence,
        "aliases": [one.name for one in pointing if one.version == number],
        "warnings": _warnings(version, report),
        "params": _trusted(html_tables.plain(version.params)),
        "libraries": _trusted(html_tables.plain(version.libraries)),
        "fit_info": _fit_info(version.fit_info),
        "fell_back": fallback_sentence(version.fit_info),
        "chosen": _chosen(version),
        "candidates": _candidates(version.fit_info.get("candidates"), report),
        "why_no_onnx": versions.why_no_onnx(version),
        "seen": notes_digest(version),
        "tags": "\n".join(f"{key}: {value}" for key, value in version.tags.items()),
        "longest_description": LONGEST_DESCRIPTION,
    }
    return page(request, "version.html", values)


@router.post(f"{PATH}/notes", dependencies=needs(Scope.PROMOTE))
def annotate_version(
    request: Request, joined: Joined, caller: Caller, name: str, number: int, form: Sent
) -> Response:
    """Change tags and description; the other fields of a version never change."""
    tags = read_tags(form.text("tags"))
    description = form.text("description")
    joined.quota.check_notes(joined.database, caller.workspace, tags, description)
    with joined.database.write() as store:
        there = versions.find(store, caller, name, number)
        if form.text("seen") != notes_digest(there):
            raise Stale(
                "notes_have_changed",
                "someone changed these notes after you opened the page: reload it, and edit again",
            )
        versions.annotate(store, caller, name, number, tags=tags, description=description)
    return lead_to(request, f"/calibrators/{name}/versions/{number}")


def notes_digest(version: Version) -> str:
    """Return a digest of the notes, to detect concurrent changes."""
    written = json.dumps([version.tags, version.description], sort_keys=True)
    return hashlib.sha256(written.encode()).hexdigest()[:32]


def read_tags(text: str) -> dict[str, str]:
    r"""Parse tags from lines of ``name: value``.

    >>> read_tags("team: vision\n\n stage : trial")
    {'team': 'vision', 'stage': 'trial'}
    """
    found: dict[str, str] = {}
    for line in filter(str.strip, text.splitlines()):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not colon or name in found:
            rule = "must have unique names" if colon else "must be written as name: value"
            raise Invalid("bad_tag", f"tags {rule}, got {line.strip()[:80]!r}")
        found[name] = value
    return found


def _chosen(version: Version) -> str:
    """Return the method that ``auto`` chose; empty if there is none or its name is unknown."""
    winner = version.fit_info.get("winner")
    known = isinstance(winner, str) and winner in all_methods()
    return str(winner) if known and winner != version.method else ""


def _warnings(version: Version, report: Report | None) -> list[tuple[str, str]]:
    """Return the messages and codes of warnings; those of registered maps are untrusted."""
    judging = {} if report is None else report.fit
    sources = [
        (version.fit_info.get("warnings"), ""),
        (judging.get("warnings_while_judging"), "while judging"),
    ]
    shown_above = fallback_sentence(version.fit_info)
    messages = [
        (str(one.get("message", one)), " ".join(filter(None, (str(one.get("code", "")), when))))
        if isinstance(one, Mapping)
        else (str(one), when)
        for found, when in sources
        for one in (found if isinstance(found, list) else [found] if found else [])
    ]
    return [
        (message, code)
        for message, code in messages
        if message != shown_above or code != "fell_back"
    ]


def _candidates(found: Any, report: Report | None) -> Markup:
    """Return the table of the candidates of ``auto``, with their cross-validation times."""
    if not found:
        return Markup("")
    seconds = None if report is None else report.fit.get("seconds")
    rows = found if isinstance(found, list) else []  # registered maps are untrusted
    if isinstance(seconds, dict) and all(isinstance(one, dict) for one in rows):
        found = [{**one, "seconds": seconds.get(str(one.get("method")))} for one in rows]
    return _trusted(html_tables.plain(found))


def _fit_info(info: dict[str, Any]) -> Markup:
    shown = {name: one for name, one in info.items() if name not in SHOWN_ELSEWHERE}
    return _trusted(html_tables.facts(shown)) if shown else Markup("")


def _trusted(html: str) -> Markup:
    return Markup(html)  # noqa: S704 - calibrators.report.html_tables escapes every string
