"""A service under attack: keys of its callers, and bodies sent to all of its routes."""

from __future__ import annotations

import contextlib
import http.client
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from helpers.hostile import bodies
from helpers.hostile.bodies import MEGABYTE, Body
from helpers.hostile.latency import Watched, watching
from helpers.live_service import Running, running
from helpers.route_table import NEEDS, PLACES
from helpers.workspace_contents import Things, make_one_of_each

IS_FULL = os.environ.get("CALIBRD_TEST_HOSTILE") == "full"
CLOSED = 0
SCOPES = ("predict", "fit", "promote", "admin")


@dataclass
class Target:
    """A live service with a key for every scope and one object of each kind."""

    service: Running
    tokens: dict[str, str]
    things: Things
    fields: dict[str, list[str]]

    @property
    def port(self) -> int:
        """Return the port that the service listens on."""
        port = urlsplit(self.service.url).port
        assert port is not None
        return port

    def client(self, scope: str = "admin") -> httpx.Client:
        """Create a client with a key of a scope; close it after use."""
        return self.service.client(self.tokens[scope])

    @contextlib.contextmanager
    def watched(self) -> Iterator[Watched]:
        """Measure the effect on other callers while the block runs."""
        with watching(self.port, self.service.process.pid) as watched:
            yield watched

    def send(self, method: str, path: str, scope: str, body: Body) -> int:
        """Send a body; return the status, or CLOSED if the connection was closed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {
            "Authorization": f"Bearer {self.tokens[scope]}",
            "Content-Type": body.content_type,
            **body.headers,
        }
        try:
            connection.request(method, path, body.content, headers)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            return CLOSED
        finally:
            connection.close()
        return answer.status

    def send_all(self, calls: Iterable[tuple[str, str, str, Body]], at_once: int = 2) -> list[int]:
        """Send many bodies, a few at a time; return the statuses."""
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda call: self.send(*call), calls))


@contextlib.contextmanager
def target(folder: Path, *flags: str) -> Iterator[Target]:
    """Run a service without workers until the end of the block."""
    with running(folder, "--workers", "0", "--log-level", "error", *flags) as service:
        with service.client() as owner:
            first = owner.post("/v1/keys", json={"name": "admin", "scopes": ["admin"]}).json()
        tokens = {"admin": first["token"]}
        with service.client(tokens["admin"]) as admin:
            for scope in SCOPES[:-1]:
                made = admin.post("/v1/keys", json={"name": scope, "scopes": [scope]}).json()
                tokens[scope] = made["token"]
            things = make_one_of_each(admin)
            document = admin.get("/openapi.json").json()
        yield Target(service, tokens, things, _fields(document))


def _fields(document: dict[str, Any]) -> dict[str, list[str]]:
    """Return the names of the fields in the JSON body of each operation."""
    found: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method in ("post", "put", "patch"):
                content = operation.get("requestBody", {}).get("content", {})
                schema = content.get("application/json", {}).get("schema", {})
                found[f"{method.upper()} {path}"] = sorted(_names(document, schema))
    return found


def _names(document: dict[str, Any], schema: dict[str, Any]) -> set[str]:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _names(document, document["components"]["schemas"][name])
    found = set(schema.get("properties", {}))
    for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        found |= _names(document, one)
    return found


def writes() -> Iterator[tuple[str, str]]:
    """Yield every method and path that takes a body."""
    for call in NEEDS:
        method, path = call.split()
        if method in ("POST", "PUT", "PATCH"):
            yield method, path


def bodies_for(target: Target, method: str, path: str, size: int) -> Iterator[Body]:
    """Yield the hostile bodies for a route, each at most ``size`` bytes."""
    if not path.startswith(("/v1", "/v2")):
        form_size = (1 << 18) - 100 if path.endswith("/try") else 1 << 16
        yield from bodies.form_bodies(form_size)
        yield from bodies.text_bodies(1 << 16)
        return
    if not path.endswith(("/predict", "/infer", "/datasets", "/fits", "/versions")):
        size = min(size, 2 * MEGABYTE - 100)  # larger bodies are refused by their length
    yield from bodies.json_bodies(size, target.fields.get(f"{method} {path}", []))
    yield from bodies.text_bodies(MEGABYTE)
    if path.endswith(("/predict", "/datasets", "/fits")):
        yield from bodies.npy_bodies()
        yield from bodies.npz_bodies(size)
        yield from bodies.safetensors_bodies()
        yield from bodies.csv_bodies(size)
    if path.endswith("/infer"):
        yield from bodies.infer_bodies(size)


def url_of(path: str, things: Things) -> str:
    """Return a path with the names of existing objects."""
    places = dict(PLACES)
    if "/datasets/" in path:
        places["id"] = things.upload
    elif "/jobs/" in path or "/fits/" in path:
        places["id"] = things.fit
    elif "/keys/" in path:
        places["id"] = "0" * 12
    return path.format(**places)
