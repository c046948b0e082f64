"""Output of ``calibrd fit``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from calibrators.fitting.fallback import fallback_sentence
from calibrd.cli.context import CommandContext
from calibrd.models import Alias, Recommendation, Version
from calibrd.terminal import printable


def answer_one(context: CommandContext, version: Version, alias: Alias | None) -> None:
    """Print the report of a version, and its alias if it was promoted."""
    report = version.report
    document = {**_document(version), "alias": alias}
    lines = [] if report is None else [report.summary(), ""]
    lines += choice(version.fit_info)
    lines.append(printable(f"{version.reference} ({version.method}) is on the service"))
    if alias is not None:
        lines.append(f"{version.calibrator}@{alias.name} is version {alias.version}")
        if alias.warning:
            context.output.note(printable(f"warning: {alias.warning}"))
    context.output.answer(document, "\n".join(lines))


def answer_all(
    context: CommandContext, versions: list[Version], advice: Recommendation | None
) -> None:
    """Print one line per version, and the recommendation."""
    lines = []
    for one in versions:
        judged = one.verdict or "not judged"
        if one.report is not None:
            errors = (side.metrics["ece"] or 0.0 for side in one.report.sides.values())
            judged = f"{judged}, ECE {' → '.join(f'{100 * error:.2f} %' for error in errors)}"
            judged += f"; {one.report.verdict_sentence}" if one.report.verdict_sentence else ""
        line = printable(f"{one.reference} ({one.method}): {judged}")
        lines += [line, *choice(one.fit_info)]
    if advice is not None:
        name = f"{versions[0].calibrator}@{advice.version}" if advice.version else "none"
        lines.append(printable(f"recommended: {name}, because {advice.reason}"))
    document = {"versions": [*map(_document, versions)], "recommendation": advice}
    context.output.answer(document, "\n".join(lines))


def choice(info: Mapping[str, Any]) -> list[str]:
    """Return lines that explain the choice of ``auto`` or the fallback of another method."""
    if sentence := fallback_sentence(info):
        return [printable(sentence)]
    if info.get("chosen_by") != "auto":
        return []
    listed = info.get("left_out")
    others = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    left_out = [f"left out {one.get('method')}: {one.get('why')}" for one in others]
    lines = [f"auto chose {info.get('winner')}: {info.get('why')}", *left_out]
    return [printable(line) for line in lines]


def _document(version: Version) -> dict[str, Any]:
    report = version.report
    return {
        "version": dataclasses.replace(version, report=None),
        "report": None if report is None else report.to_dict(),
    }
