"""Topic 5: peak memory of a fit in a new process, as a multiple of the logits' bytes."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.output import Row, Target, Topic
from benchmarks.timing import HANG_SECONDS

LIMIT = 2.5
OURS = {"temperature": "calibrd temperature", "smart": "calibrd smart"}
OTHERS = {"probmetrics": "probmetrics bisection"}
DRAW = (
    "import sys, numpy; from benchmarks.data import draw; "
    "s = draw(int(sys.argv[1]), int(sys.argv[2])); "
    "numpy.save(sys.argv[3], s.logits); numpy.save(sys.argv[4], s.labels)"
)


def run(sizes: Iterable[tuple[int, int]]) -> Iterable[Topic]:
    """Yield a table for each size."""
    for n, k in sizes:
        with tempfile.TemporaryDirectory() as folder:
            files = [str(Path(folder, name)) for name in ("logits.npy", "labels.npy")]
            _python("-c", DRAW, str(n), str(k), *files)
            yield compare(n, k, files)


def compare(n: int, k: int, files: list[str]) -> Topic:
    """Measure the peak memory of every method."""
    rows, targets = [], []
    for method, name in (OURS | OTHERS).items():
        found = _measure(method, files)
        rows.append(_row(name, found))
        if method in OURS:
            targets.append(Target(f"peak of {name}, in logits", found.get("peak"), LIMIT))
    return Topic(
        f"peak memory of a fit, {n:,} x {k:,} float32 ({n * k * 4 / 2**20:.0f} MiB of logits)",
        rows,
        targets,
        "peak of the resident set minus its size after the imports (including torch), divided by "
        "the size of the logits, which are part of the peak; the larger of the kernel's high-water "
        "mark (VmHWM, reset before the logits are created) and the sampled peak is judged",
    )


def _measure(method: str, files: list[str]) -> dict[str, Any]:
    try:
        return json.loads(_python("-m", "benchmarks.memory_child", method, *files))
    except subprocess.TimeoutExpired:
        return {"error": f"no result within {HANG_SECONDS} s"}
    except subprocess.CalledProcessError as failure:
        lines = failure.stderr.strip().splitlines()
        return {"error": lines[-1] if lines else f"exit code {failure.returncode}"}


def _python(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=HANG_SECONDS
    ).stdout


def _row(name: str, found: dict[str, Any]) -> Row:
    return {
        "method": name,
        "peak / logits": found.get("peak"),
        "by high-water mark": found.get("high_water"),
        "by sampling": found.get("sampled"),
        "by ru_maxrss": found.get("maxrss"),
        "samples": found.get("samples"),
        "fit seconds": found.get("seconds"),
        "failure": found.get("error"),
    }
