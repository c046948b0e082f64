"""Every route of the app: its scope, what its page shows, and why the SDK may leave it out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from service.web.components.static_files import LIBRARY, RUN_CHARTS, files

Need = Literal["public", "any", "predict", "fit", "promote", "admin"]

CALIBRATOR = "/v1/calibrators/{name}"
VERSION = f"{CALIBRATOR}/versions/{{number}}"
ALIAS = f"{CALIBRATOR}/aliases/{{alias}}"
RUN = "/v1/runs/{run}"
MODEL = "/v2/models/{name}"
MODEL_VERSION = f"{MODEL}/versions/{{version}}"

# a value for each parameter of a path
PLACES = {
    "id": "ds_0",
    "name": "fashion",
    "alias": "production",
    "ref": "production",
    "number": 1,
    "version": "1",
    "run": "resnet-cifar10",
    "step": 1,
    "file": "app.css",
}

STATIC_FILES = tuple(f"/static/{name}" for name in sorted({*files(), RUN_CHARTS, LIBRARY}))
PAGES: dict[str, Need] = {
    "GET /": "public",  # for programs; browsers are redirected to the sign-in page
    "GET /sign-in": "public",
    "POST /sign-in": "public",
    "POST /sign-out": "any",
    "POST /sample": "fit",
    "GET /calibrators/{name}": "any",
    "GET /calibrators/{name}/versions/{number}": "any",
    "POST /calibrators/{name}/versions/{number}/notes": "promote",
    "GET /calibrators/{name}/compare": "any",
    "GET /calibrators/{name}/promote": "promote",
    "POST /calibrators/{name}/promote": "promote",
    "GET /calibrators/{name}/aliases/{alias}": "any",
    "GET /calibrators/{name}/aliases/{alias}/rollback": "promote",
    "POST /calibrators/{name}/aliases/{alias}/rollback": "promote",
    "GET /new-fit": "fit",
    "GET /calibrators/{name}/try": "predict",
    "POST /calibrators/{name}/try": "predict",
    "GET /jobs": "fit",
    "GET /jobs/{id}": "fit",
    "POST /jobs/{id}/cancel": "fit",
    "GET /runs": "any",
    "GET /runs/{name}": "any",
    "GET /keys": "admin",
    "POST /keys": "admin",
    "POST /keys/{id}/revoke": "admin",
    "POST /keys/{id}/rotate": "admin",
    "GET /about": "any",
    "GET /docs": "public",
    "GET /static/{file}": "public",
    "GET /help": "public",
    "GET /help/{file}": "public",
}

NEEDS: dict[str, Need] = {
    "GET /healthz": "public",
    "GET /readyz": "public",
    **PAGES,
    "GET /openapi.json": "public",
    "GET /v2": "public",
    "GET /v2/health/live": "public",
    "GET /v2/health/ready": "public",
    "GET /metrics": "admin",
    "GET /v1/keys": "admin",
    "POST /v1/keys": "admin",
    "DELETE /v1/keys/{id}": "admin",
    "POST /v1/keys/{id}/rotate": "admin",
    "GET /v1/datasets": "fit",
    "POST /v1/datasets": "fit",
    "GET /v1/datasets/{id}": "fit",
    "HEAD /v1/datasets/{id}": "fit",
    "DELETE /v1/datasets/{id}": "fit",
    "PUT /v1/datasets/{id}/parts/{number}": "fit",
    "POST /v1/datasets/{id}/parts/presigned": "fit",
    "POST /v1/datasets/{id}/commit": "fit",
    "GET /v1/fits": "fit",
    "GET /v1/fits/{id}": "fit",
    "DELETE /v1/fits/{id}": "fit",
    "GET /v1/fits/{id}/events": "fit",
    "GET /v1/methods": "any",
    "GET /v1/calibrators": "any",
    f"GET {CALIBRATOR}": "any",
    f"POST {CALIBRATOR}/fits": "fit",
    f"GET {CALIBRATOR}/versions": "any",
    f"POST {CALIBRATOR}/versions": "fit",
    f"GET {CALIBRATOR}/compare": "any",
    f"GET {VERSION}": "any",
    f"PATCH {VERSION}": "promote",
    f"GET {VERSION}/map": "any",
    f"GET {VERSION}/onnx": "any",
    f"GET {VERSION}/report": "any",
    f"GET {VERSION}/report.json": "any",
    f"GET {VERSION}/report.html": "any",
    f"GET {VERSION}/report.svg": "any",
    f"GET {VERSION}/report.png": "any",
    f"GET {ALIAS}": "any",
    f"PUT {ALIAS}": "promote",
    f"GET {ALIAS}/history": "any",
    f"POST {ALIAS}/rollback": "promote",
    "POST /v1/runs": "fit",
    "GET /v1/runs": "any",
    f"GET {RUN}": "any",
    f"PATCH {RUN}": "fit",
    f"POST {RUN}/steps/{{step}}/stats": "fit",
    f"GET {RUN}/state": "any",
    f"GET {RUN}/history": "any",
    f"GET {CALIBRATOR}@{{ref}}/predict": "predict",
    f"POST {CALIBRATOR}@{{ref}}/predict": "predict",
    f"GET {MODEL}": "predict",
    f"GET {MODEL}/ready": "predict",
    f"POST {MODEL}/infer": "predict",
    f"GET {MODEL_VERSION}": "predict",
    f"GET {MODEL_VERSION}/ready": "predict",
    f"POST {MODEL_VERSION}/infer": "predict",
}
UNDOCUMENTED = {
    "/openapi.json",
    f"{VERSION}/report.json",
    *(one.split()[1] for one in PAGES),
}

# pages without user text, or whose scripts load it
WITHOUT_USER_TEXT = {
    "/new-fit",
    "/runs",
    "/runs/{name}",
    "/sign-in",
    "/calibrators/{name}/promote",
    "/docs",
}
OTHER_PROTOCOL = "the Open Inference Protocol is for its own clients; predict does the same"
DRAWN_HERE = "the report is fetched as JSON, and report.save draws it here"
NOT_IN_SDK = {
    "HEAD /v1/datasets/{id}": "GET answers the same question, and with the dataset itself",
    "GET /v1/fits/{id}/events": "GET with Prefer: wait tells the same, and survives a broken line",
    f"GET {CALIBRATOR}@{{ref}}/predict": "for browsers and curl; POST takes any number",
    f"GET {VERSION}/report.html": DRAWN_HERE,
    f"GET {VERSION}/report.svg": DRAWN_HERE,
    f"GET {VERSION}/report.png": DRAWN_HERE,
    "GET /healthz": "for supervisors; client.ready() says more",
    "GET /metrics": "for Prometheus",
    "GET /v2": OTHER_PROTOCOL,
    "GET /v2/health/live": OTHER_PROTOCOL,
    "GET /v2/health/ready": OTHER_PROTOCOL,
    f"GET {MODEL}": OTHER_PROTOCOL,
    f"GET {MODEL}/ready": OTHER_PROTOCOL,
    f"POST {MODEL}/infer": OTHER_PROTOCOL,
    f"GET {MODEL_VERSION}": OTHER_PROTOCOL,
    f"GET {MODEL_VERSION}/ready": OTHER_PROTOCOL,
    f"POST {MODEL_VERSION}/infer": OTHER_PROTOCOL,
}


class Call(NamedTuple):
    """A method and a path, with the names of path parameters as placeholders."""

    method: str
    path: str

    @property
    def need(self) -> Need:
        """Return the required scope; fail if the route is not in the table."""
        as_get = f"GET {self.path}"
        if self.method == "HEAD" and str(self) not in NEEDS:
            return NEEDS[as_get]
        return NEEDS[str(self)]

    @property
    def parameters(self) -> list[str]:
        """Return the names of the path parameters."""
        return re.findall(r"\{(\w+)\}", self.path)

    def url(self, **values: object) -> str:
        """Return the path with values for its parameters."""
        return self.path.format(**values)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def calls_of(app: FastAPI) -> Iterator[Call]:
    """Return every method of every route: plain ones, FastAPI's, and those of included routers."""
    for route in iter_route_contexts(app.routes):
        # a mount or a websocket would bypass these checks
        assert route.path is not None
        assert route.methods, f"{route.path} is no plain HTTP route"
        for method in sorted(route.methods):
            yield Call(method, route.path.replace(":path", ""))
