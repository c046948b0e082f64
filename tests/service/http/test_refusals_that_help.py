"""Refusals name the cause: the header, every broken rule, the name, the route and the caller."""

from __future__ import annotations

import httpx
import pytest
import structlog
from helpers.live_service import Local

from calibrators.error_codes import ERROR_CODES

FORWARDED = "10.1.2.3"  # trusted, because the proxy is on this machine
ALIAS = "/v1/calibrators/fashion/aliases/production"


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "application/x-www-form-urlencoded"}])
def test_json_without_its_content_type(tenant: httpx.Client, headers: dict[str, str]) -> None:
    answer = tenant.put(ALIAS, content=b'{"version": 1}', headers=headers)
    assert answer.status_code == 422
    assert "Content-Type: application/json" in answer.json()["detail"]


def test_json_that_is_no_object(tenant: httpx.Client) -> None:
    detail = tenant.put(ALIAS, json=[1]).json()["detail"]
    assert "Content-Type" not in detail
    assert detail.startswith("body: ")


def test_a_second_error_is_named_and_more_are_counted(tenant: httpx.Client) -> None:
    two = tenant.put(ALIAS, json={"version": 0, "reason": 1}).json()
    assert "body.version: " in two["detail"]
    assert "; body.reason: " in two["detail"]
    four = tenant.put(ALIAS, json={"version": 0, "reason": 1, "force": 2, "x": 3}).json()
    assert four["error_count"] == 4
    assert four["detail"].endswith("; and 2 more")


@pytest.mark.parametrize(
    "path", ["/v1/calibrators/No Name", "/v1/calibrators/a/aliases/B", "/v1/runs/No Name"]
)
def test_a_bad_name_in_a_path(tenant: httpx.Client, path: str) -> None:
    answer = tenant.get(path)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_name")
    assert "1 to 64 characters of a-z" in answer.json()["detail"]


def test_titles_are_meanings(tenant: httpx.Client) -> None:
    told = tenant.get("/v1/calibrators/none").json()
    assert told["title"] == ERROR_CODES[told["code"]].meaning.removesuffix(".")


def test_a_refused_request_is_logged_with_its_route_and_caller(
    shared_app: Local, tenant: httpx.Client
) -> None:
    with structlog.testing.capture_logs() as lines:
        headers = {"Authorization": "Bearer cal_0_nonsense"}
        path = "/v1/calibrators/fashion"
        assert tenant.get(path, headers=headers).status_code == 401
        assert tenant.get(path, headers={"X-Forwarded-For": FORWARDED}).status_code == 404
        tenant.get("/nowhere")
    refused, missing, nowhere = (line for line in lines if line["event"] == "request")
    assert refused["route"] == missing["route"] == "/v1/calibrators/{name}"
    assert (refused["client"], missing["client"]) == ("127.0.0.1", FORWARDED)
    assert "key_id" not in refused
    assert missing["key_id"] in str(tenant.headers["authorization"])
    assert nowhere["route"] == "unmatched"
    assert "nonsense" not in str(lines)
