"""Tables and targets of the benchmarks; no other module writes to the terminal."""

import os
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.timing import Measured, ratio

Row = dict[str, Any]
QUIET_CORES = 0.1
COMPARED = (
    "numpy",
    "torch",
    "probmetrics",
    "scikit-learn",
    "netcal",
    "torchmetrics",
    "relplot",
    "litserve",
)


@dataclass(frozen=True)
class Target:
    """A target: `value` is at most `limit` (or at least, if `at_least`); None is a failure."""

    name: str
    value: float | None
    limit: float
    at_least: bool = False
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the target is met."""
        if self.value is None:
            return False
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        verdict = "PASS" if self.passed else "FAIL"
        note = f"  ({self.note})" if self.note else ""
        return f"{verdict}  {self.name}: {show(self.value)} {sign} {self.limit:g}{note}"


def share_of_fastest(
    title: str, mine: Measured, others: Iterable[Measured], limit: float
) -> Target:
    """Return our time relative to the fastest of these; without any, a missed target."""
    fastest = min(others, key=lambda found: found.median or float("inf"), default=None)
    name = f"our share of the fastest {title}"
    if fastest is None:
        return Target(name, None, limit, note="there is none")
    return Target(name, ratio(mine, fastest), limit, note=fastest.name)


@dataclass(frozen=True)
class Topic:
    """Results of one benchmark: rows with the same keys, and the targets judged on them.

    A row's `failure` is shown below the table instead of in a column.
    """

    title: str
    rows: list[Row]
    targets: list[Target]
    note: str = ""
    markdown: bool = False


@dataclass
class Results:
    """Results of a run on one machine."""

    machine: Row
    topics: list[Topic] = field(default_factory=list)
    foreign_cores: list[float] = field(default_factory=list)

    def add(self, topic: Topic, foreign_cores: float) -> None:
        """Add a topic, and the number of cores that other processes used meanwhile."""
        self.topics.append(topic)
        self.foreign_cores.append(foreign_cores)

    @property
    def targets(self) -> list[Target]:
        """The targets of all topics."""
        return [target for topic in self.topics for target in topic.targets]

    @property
    def passed(self) -> bool:
        """Whether all targets are met."""
        return all(target.passed for target in self.targets)

    def to_dict(self) -> Row:
        """Return the results as plain JSON."""
        topics = [
            {
                "title": topic.title,
                "note": topic.note,
                "rows": topic.rows,
                "foreign_cores": foreign_cores,
                "targets": [asdict(t) | {"passed": t.passed} for t in topic.targets],
            }
            for topic, foreign_cores in zip(self.topics, self.foreign_cores, strict=True)
        ]
        return {"machine": self.machine, "passed": self.passed, "topics": topics}


def write(text: str = "") -> None:
    """Write a line to the terminal."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def show(value: Any) -> str:
    """Format with three significant digits, exponents where useful, and a dash for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        magnitude = abs(value)
        if value == 0.0:
            return "0"
        return f"{value:.4g}" if 1e-3 <= magnitude < 1e5 else f"{value:.1e}"
    return str(value)


def write_topic(topic: Topic, foreign_cores: float) -> None:
    """Write the table and the targets of a topic."""
    write(f"\n## {topic.title}")
    if topic.note:
        write(topic.note)
    warning = ": NOT A QUIET MACHINE, repeat" if foreign_cores > QUIET_CORES else ""
    write(f"other processes kept {foreign_cores:.2f} cores busy during the run{warning}")
    if topic.markdown:
        write()
    for line in _markdown(topic.rows) if topic.markdown else _table(topic.rows):
        write(line if topic.markdown else f"  {line}")
    for row in topic.rows:
        if failure := row.get("failure"):
            write(f"  {next(iter(row.values()))} failed: {failure}")
    for target in topic.targets:
        write(f"  {target}")


def _table(rows: Sequence[Row]) -> Iterable[str]:
    cells = _cells(rows)
    columns = cells[0]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for number, line in enumerate(cells):
        first, *rest = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join([first, *(c.strip().rjust(len(c)) for c in rest)]).rstrip()
        if number == 0:
            yield "  ".join("-" * width for width in widths)


def _markdown(rows: Sequence[Row]) -> Iterable[str]:
    names, *others = _cells(rows)
    for cells in (names, ["---", *("---:" for _ in names[1:])], *others):
        yield f"| {' | '.join(cells)} |"


def _cells(rows: Sequence[Row]) -> list[list[str]]:
    columns = [key for key in dict.fromkeys(k for row in rows for k in row) if key != "failure"]
    return [columns, *([show(row.get(column)) for column in columns] for row in rows)]


def machine(threads: int) -> Row:
    """Return the processor, the load before the run and the versions of the compared libraries."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": threads,
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "versions": {name: _version(name) for name in COMPARED},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
