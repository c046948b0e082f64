"""Runs of a study, stored in a folder so that an interrupted study resumes, and their table."""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

Found = dict[str, Any]


def run_all(
    plans: Sequence[Any], run: Callable[..., Found], parts: Any, folder: Path, processes: int
) -> list[Found]:
    """Return the results of ``run(plan, parts)`` in order; stored runs are not repeated.

    A plan is a frozen dataclass of plain values with the name of its ``file``; a result is
    plain JSON with its ``seconds``, to which the plan is added.
    """
    folder.mkdir(parents=True, exist_ok=True)
    places = {plan: folder / f"{plan.file}.json" for plan in plans}
    missing = [plan for plan in plans if not _is_stored(places[plan], plan)]
    for done, (plan, found) in enumerate(_finished(missing, run, parts, processes), start=1):
        place = places[plan]
        place.with_suffix(".part").write_text(json.dumps({"plan": asdict(plan), **found}))
        place.with_suffix(".part").replace(place)
        sys.stderr.write(f"{plan.file}: {found['seconds']:.0f} s, {done} of {len(missing)} done\n")
    return [json.loads(places[plan].read_text()) for plan in plans]


def stored(plans: Sequence[Any], folder: Path) -> list[Found]:
    """Return the results of those plans that have been run, in order."""
    places = {plan: folder / f"{plan.file}.json" for plan in plans}
    return [
        json.loads(place.read_text()) for plan, place in places.items() if _is_stored(place, plan)
    ]


def _finished(
    plans: Sequence[Any], run: Callable[..., Found], parts: Any, processes: int
) -> Iterator[tuple[Any, Found]]:
    """Yield each run as soon as it has finished."""
    if processes == 1:
        yield from ((plan, run(plan, parts)) for plan in plans)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        futures = {pool.submit(run, plan, parts): plan for plan in plans}
        failed = []
        for future in as_completed(futures):
            if future.exception():
                failed.append(future)
            else:
                yield futures[future], future.result()
        for future in failed:  # after the others are stored
            future.result()


def _is_stored(place: Path, plan: Any) -> bool:
    if not place.exists():
        return False
    stored = json.loads(place.read_text())["plan"]
    return bool(stored == json.loads(json.dumps(asdict(plan))))


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return mean ± standard deviation, or just the value if there is only one."""
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


def put_between(path: Path, name: str, text: str) -> None:
    """Replace the text between ``<!-- name -->`` and ``<!-- end of name -->``, or append it."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    old = path.read_text() if path.exists() else ""
    if begin not in old:
        old += f"{begin}\n{end}\n"
    before, rest = old.split(begin, 1)
    path.write_text(f"{before}{begin}\n\n{text}\n{end}{rest.split(end, 1)[1]}")
