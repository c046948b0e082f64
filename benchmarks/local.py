"""Topic 8: a map loaded by the SDK from the service, compared with the same map without it."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.output import Row, Target, Topic
from benchmarks.serving import server
from benchmarks.timing import Contender, Measured, alternate, ratio

MOST = 1.2
BARE = "CalibrationMap.apply"
LOADED = "LocalMap.apply"
REFRESH_SECONDS = 1.0
# numbers per run of a contender, and limits of the calls per run
NUMBERS = 400_000
FEWEST_CALLS = 5
MAX_CALLS = 500


def run(sizes: Iterable[tuple[int, int]], rounds: int, budget: float) -> Iterable[Topic]:
    """Yield a table for each size."""
    with server("ours") as port, _cache():
        for n, k in sizes:
            yield compare(f"http://127.0.0.1:{port}", n, k, rounds, budget)


def compare(url: str, n: int, k: int, rounds: int, budget: float) -> Topic:
    """Time a loaded map and the same map without the SDK."""
    import calibrd
    from calibrators.methods.temperature import TemperatureMap

    name, sample = f"local-{n}-{k}", data.draw(n, k)
    calls = min(MAX_CALLS, max(FEWEST_CALLS, NUMBERS // (n * k)))
    with calibrd.Client(url) as client:
        version = client.register(name, TemperatureMap(k=k, temperature=data.TRUE_TEMPERATURE))
        client.promote(name, version, force=True, reason="a benchmark")
        with client.load(name, refresh=REFRESH_SECONDS) as local:
            contenders = [
                Contender(BARE, _repeated(local.map.apply, sample.logits, calls)),
                Contender(LOADED, _repeated(local.apply, sample.logits, calls)),
            ]
            measured = alternate(contenders, rounds, budget)
    share = ratio(measured[LOADED], measured[BARE])
    return Topic(
        f"apply in process, {sample.size} float32",
        [_row(found, measured[BARE], calls) for found in measured.values()],
        [Target("a loaded map's time relative to the bare map", share, MOST)],
        f"a temperature map, {calls} calls in each run; meanwhile the loaded map polls the service "
        f"every {REFRESH_SECONDS:g} s",
    )


def _repeated(
    apply: Callable[[np.ndarray], np.ndarray], logits: np.ndarray, calls: int
) -> Callable[[], Any]:
    def repeat() -> None:
        for _ in range(calls):
            apply(logits)

    return repeat


def _row(found: Measured, bare: Measured, calls: int) -> Row:
    def microseconds(seconds: float | None) -> float | None:
        return None if seconds is None else 1e6 * seconds / calls

    return {
        "method": found.name,
        "us a call": microseconds(found.median),
        "fastest": microseconds(found.fastest),
        "runs": found.runs,
        "it / bare": ratio(found, bare),
        "failure": found.error,
    }


@contextlib.contextmanager
def _cache() -> Iterator[None]:
    """Cache maps in a temporary folder."""
    before = os.environ.get("CALIBRD_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CALIBRD_CACHE_DIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("CALIBRD_CACHE_DIR")
            if before is not None:
                os.environ["CALIBRD_CACHE_DIR"] = before
