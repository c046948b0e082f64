"""Topic 6: predict over HTTP, compared with an empty endpoint of the same app and LitServe."""

import contextlib
import io
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator

import numpy as np

from benchmarks.load import Call, requests_per_second
from benchmarks.output import Row, Target, Topic

SHARE_OF_EMPTY = 0.7
TIMES_LITSERVE = 10.0
START_SECONDS = 120
STOP_SECONDS = 15
SETTLE_SECONDS = 1.0

BODILESS = "empty POST without a body"
EMPTY = "empty POST of the same body"
NPY = "calibrd predict, npy"
JSON = "calibrd predict, JSON"
LITSERVE = "LitServe, JSON"


def run(sizes: Iterable[tuple[int, int]], rounds: int, seconds: float) -> Iterable[Topic]:
    """Yield a table for each size and number of connections."""
    for rows, classes in sizes:
        for connections in (1, 16):
            yield compare(rows, classes, connections, rounds, seconds)


def compare(rows: int, classes: int, connections: int, rounds: int, seconds: float) -> Topic:
    """Measure the responses per second of our service and its competitors."""
    logits = np.random.default_rng(0).normal(size=(rows, classes)).astype(np.float32)
    npy, text = _npy(logits), _json(logits)
    path = "/v1/calibrators/bench@1/predict"
    ours = {
        BODILESS: Call("/empty/predict"),
        EMPTY: Call("/reads/predict", npy),
        NPY: Call(path, npy, "application/x-npy"),
        JSON: Call(path, text, "application/json"),
    }
    theirs = {LITSERVE: Call("/predict", text, "application/json")}
    found: dict[str, list[float]] = {name: [] for name in (*ours, *theirs)}
    with server("ours") as our_port, server("litserve") as their_port:
        ports = dict.fromkeys(ours, our_port) | dict.fromkeys(theirs, their_port)
        calls = ours | theirs
        for number in range(-1, rounds):
            for name, call in calls.items():
                rate = requests_per_second(ports[name], call, connections, seconds)
                if number >= 0:
                    found[name].append(rate)
    return _topic(rows, classes, connections, found)


def _topic(rows: int, classes: int, connections: int, found: dict[str, list[float]]) -> Topic:
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    table: list[Row] = [
        {
            "endpoint": name,
            "requests/s": round(medians[name]),
            "of empty": medians[name] / medians[EMPTY],
            "times LitServe": medians[name] / medians[LITSERVE],
        }
        for name in found
    ]
    targets = []
    if connections == 16:
        share = statistics.median(a / b for a, b in zip(found[NPY], found[EMPTY], strict=True))
        times = statistics.median(a / b for a, b in zip(found[NPY], found[LITSERVE], strict=True))
        targets = [
            Target("share of an empty POST (npy)", share, SHARE_OF_EMPTY, at_least=True),
            Target("times LitServe (npy)", times, TIMES_LITSERVE, at_least=True),
        ]
    return Topic(
        f"predict over HTTP, {rows} x {classes}, {connections} connection(s)",
        table,
        targets,
        "one uvicorn process and one LitServe API server with one worker, with the load from a "
        "third process; the empty POST is a Starlette route of the same app that reads the same "
        "body and returns nothing; figures are medians of alternating rounds, and ratios are "
        "computed round by round",
    )


def _npy(logits: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, logits)
    return file.getvalue()


def _json(logits: np.ndarray) -> bytes:
    import orjson

    return orjson.dumps({"logits": logits.tolist()})


@contextlib.contextmanager
def server(kind: str) -> Iterator[int]:
    """Run a server in its own process group, stopped with all its children; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.serving_{kind}", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_for(port, process)
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            time.sleep(SETTLE_SECONDS)
            return
        time.sleep(0.1)
    raise RuntimeError("a server did not start")
