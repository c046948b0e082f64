"""Tasks that a process beside the API runs: ``python -m service.registry.reports.tasks``."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from calibrators import CalibrationSet, Report, archive, charts, evaluate
from calibrators.comparison import compare as comparison
from calibrators.comparison.judged_rows import JudgedRows, fingerprint
from calibrators.errors import CalibrationError
from calibrators.numerics.softmax import margins
from calibrators.report import html_page
from service.concurrency.task_process import FAILED, OK, TASK_FAILED, read_message, write_message
from service.datasets import formats
from service.errors import ServiceError

MOST_VALUES = 20_000_000
NICENESS = 10  # tasks can wait for those who are answered


def draw(request: dict[str, Any]) -> bytes:
    """Return a report as html, svg or png."""
    report = Report.from_dict(request["report"])
    match request["format"]:
        case "html":
            return html_page.render(report, title=request["title"]).encode()
        case "svg":
            return charts.to_svg(report.chart()).encode()
        case _:
            return charts.to_png(report.chart())


def compare(request: dict[str, Any]) -> bytes:
    """Return the report of two maps on a dataset's rows, or on some of them if they are many."""
    path, format = Path(request["path"]), formats.Format(request["format"])
    whole = formats.load(path, format, request["kind"])
    rows, data = whole.n, at_most(whole, request["most_rows"])
    first, second = (
        archive.load(base64.b64decode(content)).apply_set(data) for content in request["maps"]
    )
    report = evaluate(
        second,
        data.labels,
        before=first,
        margin=margins(data.logits),
        groups=data.groups,
        judged_on=f"{data.n:,} rows of the dataset {request['dataset']}",
    )
    found = {"rows": rows, "data": fingerprint(whole), "report": report.to_dict()}
    return orjson.dumps(found)


def compare_judged(request: dict[str, Any]) -> bytes:
    """Return the report of two versions on the rows that both were judged on."""
    first, second = (JudgedRows.load(base64.b64decode(one)) for one in request["rows"])
    return orjson.dumps({"report": comparison.compare(first, second).to_dict()})


def at_most(data: CalibrationSet, most_rows: int) -> CalibrationSet:
    """Return the set, or as many of its rows as are measured in seconds; the seed is fixed."""
    most = max(1, min(most_rows, MOST_VALUES // data.k))
    if data.n <= most:
        return data
    chosen = np.random.default_rng(0).choice(data.n, most, replace=False)
    return data.take(np.sort(chosen))


TASKS = {"draw": draw, "compare": compare, "compare_judged": compare_judged}


def _answer(request: dict[str, Any]) -> bytes:
    try:
        return OK + TASKS[request.pop("task")](request)
    except (ServiceError, CalibrationError) as error:
        code, message = error.code, str(error)
    except Exception as error:  # noqa: BLE001 - a report may hold anything; the next one is served
        code, message = TASK_FAILED, f"it could not be done ({type(error).__name__})"
    return FAILED + json.dumps({"code": code, "message": message}).encode()


def main() -> None:
    """Run tasks until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which ends us
    os.nice(NICENESS)
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    while True:
        try:
            request = json.loads(read_message(source))
        except EOFError:
            return
        write_message(target, _answer(request))


if __name__ == "__main__":
    main()
