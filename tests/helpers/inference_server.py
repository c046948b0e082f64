"""A small app on loopback with only the routes of the Open Inference Protocol."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette

from calibrators import CalibrationMap
from calibrators.methods.segmented import SegmentedMap
from calibrators.methods.smart import SmartMap
from calibrators.methods.temperature import TemperatureMap
from helpers.large_calls import large_calls
from service.access.permissions import Principal, Scope
from service.errors import NotFound
from service.http.problems import install_problems
from service.serving.inference_protocol import inference_routes
from service.serving.map_cache import Served

LIMIT = 4 << 20
JSON_LIMIT = 256 << 10
ROW = [2.0, 0.5, -1.0]
rng = np.random.default_rng(7)


class NotingMap(TemperatureMap):
    """Records the threads in which it is applied."""

    threads: set[str] = set()  # noqa: RUF012 - shared on purpose

    def apply_logits(self, logits: Any, segments: Any = None, features: Any = None) -> Any:
        self.threads.add(threading.current_thread().name)
        return super().apply_logits(logits, segments, features)


def smart(k: int) -> SmartMap:
    return SmartMap(
        k=k,
        base_temperature=1.3,
        indicator="margin",
        centre=np.array([1.0]),
        spread=np.array([2.0]),
        w1=rng.normal(size=(1, 16)),
        b1=rng.normal(size=16),
        w2=rng.normal(size=16) / 4,
        b2=0.3,
    )


def served(name: str, number: int, fitted: CalibrationMap) -> Served:
    return Served(name, number, fitted, f"{number:064x}", None)


VERSIONS = {
    ("plain", "production"): served("plain", 3, TemperatureMap(k=3, temperature=1.5)),
    ("plain", "2"): served("plain", 2, TemperatureMap(k=3, temperature=4.0)),
    ("plain", "candidate"): served("plain", 2, TemperatureMap(k=3, temperature=4.0)),
    ("smart", "production"): served("smart", 1, smart(10)),
    ("binary", "production"): served("binary", 1, TemperatureMap(k=2, temperature=2.0)),
    ("from-probabilities", "production"): served(
        "from-probabilities", 1, TemperatureMap(k=3, kind="probabilities", temperature=0.5)
    ),
    ("fingerprinted", "production"): Served(
        "fingerprinted", 1, TemperatureMap(k=3, temperature=1.5), "ab" * 32, "modèle:v1"
    ),
    ("segmented", "production"): served(
        "segmented",
        1,
        SegmentedMap(
            k=3,
            base=TemperatureMap(k=3, temperature=1.5),
            segments=("12", "app", "wéb"),
            temperatures=np.array([0.5, 2.0, 3.0]),
        ),
    ),
    ("large", "production"): served("large", 1, NotingMap(k=1000, temperature=2.5)),
}
PLAIN, SMART = VERSIONS["plain", "production"], VERSIONS["smart", "production"]


def logits(rows: int, k: int, dtype: Any = np.float32) -> np.ndarray:
    return (rng.normal(size=(rows, k)) * 3).astype(dtype)


class Shelf:
    """Versions that are loaded into memory on first use."""

    def __init__(self) -> None:
        self.memory: dict[tuple[str, str, str], Served] = {}
        self.loaded: list[str] = []
        self.ready = True

    def find(self, principal: Principal, name: str, ref: str) -> Served | None:
        return self.memory.get((principal.workspace, name, ref))

    async def load(self, principal: Principal, name: str, ref: str) -> Served:
        if (name, ref) not in VERSIONS:
            raise NotFound("no_such_version", f"there is no {name}@{ref}")
        self.loaded.append(f"{name}@{ref}")
        self.memory[principal.workspace, name, ref] = VERSIONS[name, ref]
        return VERSIONS[name, ref]

    async def is_ready(self) -> bool:
        return self.ready


class Guard:
    """Accepts the keys of two callers; /v2 and its health routes need none."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v2/models"):
            given = dict(scope["headers"]).get(b"authorization", b"")
            allowed = Scope.FIT if given == b"Bearer fit-only" else Scope.PREDICT
            scope["principal"] = Principal("default", "tester", frozenset({allowed}))
        await self.app(scope, receive, send)


def make_app(shelf: Shelf) -> Starlette:
    routes = inference_routes(
        shelf.find, shelf.load, "0.1.0", LIMIT, shelf.is_ready, large_calls(), JSON_LIMIT
    )
    app = Starlette(routes=routes)
    app.add_middleware(Guard)
    install_problems(app)
    return app


@contextmanager
def serving(shelf: Shelf) -> Iterator[str]:
    """Run a server of the shelf's versions; yield its address."""
    app = make_app(shelf)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listener],), name="server")
        thread.start()
        give_up = time.monotonic() + 20
        while not server.started and time.monotonic() < give_up:
            time.sleep(0.01)
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)
        assert not thread.is_alive()


def request(**tensor_changes: Any) -> dict[str, Any]:
    """Return a valid JSON request with these changes; ``...`` removes a field."""
    tensor = {"name": "logits", "datatype": "FP32", "shape": [1, 3], "data": ROW}
    changed = {**tensor, **tensor_changes}
    return {"inputs": [{key: one for key, one in changed.items() if one is not ...}]}


def raw(document: Any, data: bytes, length: int | None = None) -> tuple[bytes, dict[str, str]]:
    """Return the body and headers of a request whose binary tensor follows its JSON."""
    text = json.dumps(document).encode()
    stated = len(text) if length is None else length
    return text + data, {"Inference-Header-Content-Length": str(stated)}


def sized(size: Any, **changes: Any) -> dict[str, Any]:
    """Return the JSON of a request whose binary tensor follows it."""
    return request(data=..., parameters={"binary_data_size": size}, **changes)
