"""Topic 10: the dashboard's pages with a large database, embedded and on PostgreSQL."""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.capacity_site import ROOT
from benchmarks.output import Row, Target, Topic

LIMIT_MILLISECONDS = 150.0
CALIBRATOR = "model-{:05}"
IN_PRODUCTION = 2  # one in this many calibrators has an older version in production
UNMEASURED = ("/sign-in", "/static/{file}")


def run(sizes: Iterable[tuple[int, int]], rounds: int) -> Iterable[Topic]:
    """Yield the times of all pages for each kind of storage."""
    sys.path[:0] = [str(ROOT / "tests")]
    from helpers.backends import Embedded
    from helpers.database_servers import postgres

    for calibrators, versions in sizes:
        found: dict[str, dict[str, float]] = {}
        with tempfile.TemporaryDirectory() as folder:
            settings = Embedded().settings(Path(folder))
            found["SQLite"] = _measure(settings, calibrators, versions, rounds)
        with tempfile.TemporaryDirectory() as folder, postgres() as database:
            database.execute("CREATE DATABASE dashboard")
            settings = {"data_dir": Path(folder), "database_url": database.url("dashboard")}
            found["PostgreSQL"] = _measure(settings, calibrators, versions, rounds)
        yield _topic(found, calibrators, versions)


def _topic(found: dict[str, dict[str, float]], calibrators: int, versions: int) -> Topic:
    rows: list[Row] = [
        {"page": path, **{f"{name}, ms": times[path] for name, times in found.items()}}
        for path in next(iter(found.values()))
    ]
    slowest = max(one for times in found.values() for one in times.values())
    return Topic(
        f"dashboard: {calibrators:,} calibrators with {versions:,} versions each",
        rows,
        [Target("slowest page, ms", slowest, LIMIT_MILLISECONDS)],
        note="medians of the whole request, on one connection",
    )


def _measure(
    settings: dict[str, Any], calibrators: int, versions: int, rounds: int
) -> dict[str, float]:
    from helpers.dashboard_pages import HTML
    from helpers.live_service import in_process
    from helpers.route_table import PAGES

    from service import logs

    logs.configure("error", "json")
    with ExitStack() as stack:
        client = stack.enter_context(in_process(**settings))
        place = _real(client, CALIBRATOR.format(calibrators // 2), versions)
        _fill(client, calibrators, versions)
        paths = [one.split()[1] for one in PAGES if one.startswith("GET ")]
        found = {}
        for path in (one for one in paths if one not in UNMEASURED):
            times = []
            for _ in range(rounds):
                began = time.perf_counter()
                answer = client.get(path.format(**place), headers=HTML)
                times.append(1000 * (time.perf_counter() - began))
                assert answer.status_code == 200, (path, answer.text)  # noqa: S101
            found[path] = statistics.median(times)
        return found


def _real(client: Any, name: str, versions: int) -> dict[str, Any]:
    """Create the measured calibrator over the API; return the path fields of its pages."""
    from helpers.live_service import NPZ, npz, sample
    from helpers.workspace_contents import ALIAS, CLASSES, fitted_elsewhere

    for _ in range(versions):
        answer = client.post(f"/v1/calibrators/{name}/versions", json=fitted_elsewhere())
        answer.raise_for_status()
    for version in (1, versions):
        move = client.put(f"/v1/calibrators/{name}/aliases/{ALIAS}", json={"version": version})
        move.raise_for_status()
    client.post("/v1/datasets", content=npz(*sample(2000, CLASSES)), headers=NPZ)
    ordered = client.post("/sample").headers["location"]
    return {"name": name, "number": versions, "alias": ALIAS, "id": ordered.rpartition("/")[2]}


def _fill(client: Any, calibrators: int, versions: int) -> None:
    """Insert copies of one version with its report, and of a fit for each."""
    from sqlalchemy import insert, select, text

    from service.storage import tables

    database = client.app.state.parts.database
    with database.write() as store:
        one, report, fit, line = (
            dict(store.session.execute(select(table)).mappings().first())
            for table in (tables.versions, tables.reports, tables.fits, tables.calibrators)
        )
        numbers = range(1, versions + 1)
        for place in range(calibrators):
            name, id = CALIBRATOR.format(place), f"cb_{place}"
            if name == line["name"]:
                continue  # the measured calibrator
            mine = {"calibrator": id}
            made = {"created_at": 1e9 + place, "status": "succeeded", "calibrator_name": name}
            execute = store.session.execute
            execute(
                insert(tables.calibrators),
                {**line, "id": id, "name": name, "last_version": versions},
            )
            execute(
                insert(tables.versions),
                [{**one, **mine, "number": at, "id": f"v{place}-{at}"} for at in numbers],
            )
            execute(insert(tables.reports), {**report, **mine, "number": versions})
            execute(
                insert(tables.fits),
                [{**fit, **mine, **made, "id": f"fit_{place}-{at}"} for at in numbers],
            )
            if place % IN_PRODUCTION and versions > 1:
                execute(insert(tables.reports), {**report, **mine, "number": 1})
                moved = {"version": 1, "revision": 1, "moved_at": 1e9}
                execute(insert(tables.aliases), {**mine, "name": "production", **moved})
        if not database.is_sqlite:
            store.session.execute(text("ANALYZE"))
