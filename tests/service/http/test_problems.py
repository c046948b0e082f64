"""Every kind of failed request, and the form of its response."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import structlog
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import InterfaceError, OperationalError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from calibrators.error_codes import ERROR_CODES
from calibrators.errors import ArchiveError, DataError, FitError, ParameterError
from service import errors
from service.http.metrics import Metrics
from service.http.middleware.request_log import RequestLog
from service.http.problems import LastResort, install_problems

SECRET = "hunter2-in-the-exception"  # noqa: S105 - what must not be answered


class Wanted(BaseModel):
    model_config = ConfigDict(extra="forbid")

    seed: float = Field(gt=0, allow_inf_nan=False)


def raising(error: Exception) -> FastAPI:
    app = FastAPI()
    install_problems(app)

    @app.get("/raise")
    @app.get("/v2/raise")
    def fail() -> None:
        raise error

    async def plain(request: Request) -> Any:
        raise error

    app.router.routes.append(Route("/plain", plain))

    @app.post("/wanted")
    def take(wanted: Wanted) -> float:
        return wanted.seed

    return app


def ask(app: ASGIApp, method: str, path: str, **kwargs: Any) -> httpx.Response:
    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(RequestLog(LastResort(app), Metrics()))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **kwargs)

    return asyncio.run(call())


@pytest.mark.parametrize(
    "code", ["malformed_json", "no_such_alias", "alias_has_moved", "body_too_large", "no_space"]
)
@pytest.mark.parametrize("path", ["/raise", "/plain"])
def test_a_service_error_is_its_status_and_sentence(code: str, path: str) -> None:
    error = errors.ServiceError(code, "Some sentence.", limit=5, status="no")
    answer = ask(raising(error), "GET", path)

    assert answer.status_code == ERROR_CODES[code].status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json() == {
        "type": f"urn:calibrd:problem:{code}",
        "title": ERROR_CODES[code].meaning.removesuffix("."),
        "status": ERROR_CODES[code].status,
        "detail": "Some sentence.",
        "code": code,
        "request_id": answer.headers["x-request-id"],
        "limit": 5,
    }


def test_headers_that_a_status_needs() -> None:
    unauthenticated = raising(errors.Unauthenticated("key_required", "No key."))
    unavailable = raising(errors.Unavailable("database_busy", "Down.", retry_after=7))

    assert ask(unauthenticated, "GET", "/raise").headers["www-authenticate"] == "Bearer"
    assert ask(unavailable, "GET", "/raise").headers["retry-after"] == "7"


@pytest.mark.parametrize(
    ("error", "details"),
    [
        (DataError("nan", "A NaN.", rows=3, first=7), {"rows": 3, "first": 7}),
        (DataError("empty", "No rows."), {}),
        (ParameterError("bins", "Bins."), {}),
        (ArchiveError("not_ours", "Not ours."), {}),
        (FitError("flat", "Flat."), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_engines_errors_are_422(error: Exception, details: dict[str, int]) -> None:
    answer = ask(raising(error), "GET", "/raise")

    assert answer.status_code == 422
    body = answer.json()
    assert body["code"] == error.code  # type: ignore[attr-defined]
    assert body["detail"] == str(error)
    assert {key: body[key] for key in ("rows", "first") if key in body} == details


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"seed": NaN}', "body.seed"),
        (b'{"seed": 1e999}', "body.seed"),
        (b'{"seed": -12345.5}', "body.seed"),
        (b'{"seed": 1, "\\ud800": 1}', "body"),
        (b'{"seed": 1, "' + b"x" * 5000 + b'": 1}', "body." + "x" * 64),
        (b"[]", "body"),
        (b"", "body"),
    ],
    ids=["nan", "infinite", "negative", "half a pair", "long name", "a list", "nothing"],
)
def test_a_broken_rule_names_the_field_and_never_the_value(body: bytes, field: str) -> None:
    headers = {"content-type": "application/json"}
    answer = ask(raising(ValueError()), "POST", "/wanted", content=body, headers=headers)

    assert answer.status_code == 422
    problem = answer.json()
    assert problem["code"] == "invalid_request"
    assert problem["errors"][0]["field"] == field
    assert problem["detail"] == f"{field}: {problem['errors'][0]['rule']}"
    assert "12345" not in answer.text
    assert len(answer.content) < 1000


@pytest.mark.parametrize(
    "body", [b'{"seed": ', b"\xff\xfe{", b"[" * 200_000], ids=["cut", "bytes", "deep"]
)
def test_invalid_json_is_400(body: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = ask(raising(ValueError()), "POST", "/wanted", content=body, headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_json")


def test_unknown_paths_and_methods() -> None:
    app = raising(ValueError())
    router = APIRouter(prefix="/v1")
    router.add_api_route("/things", lambda: 1, methods=["GET"])
    router.add_api_route("/things", lambda: 1, methods=["DELETE"])
    app.include_router(router)

    nowhere = ask(app, "GET", "/nowhere/cal_x")
    refused = ask(app, "POST", "/v1/things")

    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "no_such_route")
    assert (refused.status_code, refused.json()["code"]) == (405, "method_not_allowed")
    assert refused.headers["allow"] == "GET, DELETE"


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
def test_an_unavailable_database_gives_503_without_sql(kind: type[OperationalError]) -> None:
    error = kind("SELECT secret FROM keys", {"p": SECRET}, Exception("connection refused"))
    with structlog.testing.capture_logs() as lines:
        answer = ask(raising(error), "GET", "/raise")

    assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
    assert "retry-after" in answer.headers
    assert "SELECT" not in answer.text + str(lines)
    logged = next(line for line in lines if line["event"] == "database_unavailable")
    assert logged["reason"] == "connection refused"


def test_anything_else_is_500_logged_once_and_reveals_nothing() -> None:
    headers = {"x-request-id": "mine-1"}
    with structlog.testing.capture_logs() as lines:
        answer = ask(raising(RuntimeError(SECRET)), "GET", "/raise", headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert answer.json()["request_id"] == "mine-1"
    assert SECRET not in answer.text
    logged = [line for line in lines if line["event"] == "internal_error"]
    assert [line["request_id"] for line in logged] == ["mine-1"]
    assert logged[0]["exc_info"][1].args == (SECRET,)


def test_errors_of_middleware_and_raw_apps_get_responses() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise KeyError(SECRET)

    async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
        raise errors.Forbidden("missing_scope", "No scope.")

    assert ask(broken, "GET", "/x").json()["code"] == "internal_error"
    assert ask(refusing, "GET", "/x").json()["code"] == "missing_scope"
    assert ask(Starlette(), "GET", "/x").status_code == 404


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_request_cancelled_by_shutdown_gets_503_if_possible(
    has_begun: bool,
) -> None:
    beginning = {"type": "http.response.start", "status": 200, "headers": []}
    sent: list[Message] = []

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        if has_begun:
            await send(beginning)
        await asyncio.Event().wait()

    async def send(message: Message) -> None:
        sent.append(message)

    async def run() -> None:
        scope = {"type": "http", "path": "/x", "method": "GET", "headers": []}
        task = asyncio.create_task(LastResort(endless)(scope, receive_nothing, send))
        await asyncio.sleep(0)
        task.cancel()
        await task  # the server would log it as an error if it were raised

    async def receive_nothing() -> Message:
        return {"type": "http.request"}

    asyncio.run(run())
    if has_begun:
        assert sent == [beginning]
    else:
        assert sent[0]["status"] == 503
        assert b'"code":"shutting_down"' in sent[1]["body"]


def test_v2_has_its_own_form_of_errors() -> None:
    known = ask(raising(errors.NotFound("no_such_calibrator", "No model.")), "GET", "/v2/raise")
    unknown = ask(raising(RuntimeError(SECRET)), "GET", "/v2/raise")

    assert (known.status_code, known.json()) == (404, {"error": "No model."})
    assert unknown.status_code == 500
    assert set(unknown.json()) == {"error"}
    assert SECRET not in unknown.text


def test_an_unserialisable_detail_drops_only_the_details() -> None:
    answer = ask(raising(errors.Invalid("bad_tag", "Odd \ud800.", count=1 << 70)), "GET", "/raise")

    assert answer.status_code == 422
    assert answer.json()["detail"] == "Odd ?."
