"""Tasks run by the task process: ``python -m service.registry.reports.tasks``."""

from __future__ import annotations

import base64
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from calibrators import Report, archive, charts, evaluate
from calibrators.comparison import compare as comparison
from calibrators.comparison.judged_rows import JudgedRows
from calibrators.errors import CalibrationError
from calibrators.numerics.softmax import margins
from calibrators.report import html_page
from service.concurrency.task_process import (
    FAILED,
    OK,
    OUT_OF_MEMORY,
    TASK_FAILED,
    read_message,
    write_message,
)
from service.datasets import formats
from service.errors import ServiceError

MAX_VALUES = 2_000_000
MAX_GROWTH = 1 << 29  # address space, much of which is only reserved, by arenas and thread stacks
NICENESS = 10  # requests go first


def draw(request: dict[str, Any]) -> bytes:
    """Return a report as HTML, SVG or PNG."""
    report = Report.from_dict(request["report"])
    match request["format"]:
        case "html":
            return html_page.render(report, title=request["title"]).encode()
        case "svg":
            return charts.to_svg(report.chart()).encode()
        case _:
            return charts.to_png(report.chart())


def compare(request: dict[str, Any]) -> bytes:
    """Return a report that compares two maps on the rows of a dataset, or on a sample."""
    path, format = Path(request["path"]), formats.Format(request["format"])
    maps = [archive.load(Path(one).read_bytes()) for one in request["maps"]]
    rows, data, digest = formats.sample(
        path,
        format,
        request["kind"],
        request["most_rows"],
        MAX_VALUES,
        with_features=any(one.has_features for one in maps),
    )
    first, second = (one.apply_set(data) for one in maps)
    report = evaluate(
        second,
        data.labels,
        before=first,
        margin=margins(data.logits),
        segments=data.segments,
        judged_on=f"{data.n:,} rows of the dataset {request['dataset']}",
    )
    found = {"rows": rows, "data": digest, "report": report.to_dict()}
    return orjson.dumps(found)


def compare_judged(request: dict[str, Any]) -> bytes:
    """Return a report that compares two versions on the rows that both were judged on."""
    first, second = (JudgedRows.load(base64.b64decode(one)) for one in request["rows"])
    return orjson.dumps({"report": comparison.compare(first, second).to_dict()})


TASKS = {"draw": draw, "compare": compare, "compare_judged": compare_judged}


@contextmanager
def limited_memory(growth: int) -> Iterator[None]:
    """Make allocations beyond ``growth`` bytes of new address space fail with MemoryError.

    Without /proc, there is no limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        yield
        return
    limit = pages * resource.getpagesize() + growth
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _run(name: str, request: dict[str, Any]) -> bytes:
    if name == "draw":  # the PNG engine reserves gigabytes that it never uses
        return TASKS[name](request)
    with limited_memory(MAX_GROWTH):
        return TASKS[name](request)


def _answer(request: dict[str, Any]) -> bytes:
    try:
        return OK + _run(request.pop("task"), request)
    except MemoryError:
        code, message = (
            OUT_OF_MEMORY,
            "the task needs more memory than allowed: use fewer rows",
        )
    except (ServiceError, CalibrationError) as error:
        code, message = error.code, str(error)
    except Exception as error:  # noqa: BLE001 - reports are untrusted; keep serving
        code, message = TASK_FAILED, f"the task failed ({type(error).__name__})"
    return FAILED + json.dumps({"code": code, "message": message}).encode()


def main() -> None:
    """Run tasks until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service handles Ctrl-C and ends this process
    os.nice(NICENESS)
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep the output of libraries out of the response
    while True:
        try:
            request = json.loads(read_message(source))
        except EOFError:
            return
        write_message(target, _answer(request))


if __name__ == "__main__":
    main()
