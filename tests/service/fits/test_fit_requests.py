"""Fit requests are small, and are checked off the event loop before the write lock is taken."""

from __future__ import annotations

import difflib
import threading
from typing import Any

import httpx
import pytest
from helpers.fit_fixtures import Place, logits_and_labels
from helpers.format_samples import npz

from calibrators.errors import ParameterError
from calibrators.registry import get_method, make_recipe
from service.access.permissions import Principal, Scope
from service.errors import LONGEST_MESSAGE, Invalid, TooLarge
from service.fits import service as fits
from service.fits.service import LONGEST_SPEC, FitRequest, FitSpec, MethodSpec

pytestmark = pytest.mark.both_backends

LONG = "ab" * 500_000


def test_a_long_name_is_not_compared_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(*_: Any, **__: Any) -> list[str]:
        raise AssertionError("comparing takes seconds")

    monkeypatch.setattr(difflib, "get_close_matches", compare)
    for attempt in (
        lambda: get_method(LONG),
        lambda: make_recipe("smart", {LONG: 1}),
        lambda: make_recipe("auto", {"candidates": [LONG]}),
        lambda: make_recipe("segmented", {"base": LONG}),
    ):
        with pytest.raises(ParameterError) as refused:
            attempt()
        assert len(str(refused.value)) < 1000


def test_no_message_repeats_megabytes() -> None:
    assert len(Invalid("invalid_request", LONG).message) == LONGEST_MESSAGE
    assert len(str(ParameterError("bad_parameter", LONG))) == LONGEST_MESSAGE


@pytest.mark.parametrize(
    "params", [{"candidates": ["ets"] * 19_000}, {LONG: 1}, {"candidates": [LONG]}]
)
def test_a_fit_request_is_bounded(params: dict[str, Any]) -> None:
    with pytest.raises(TooLarge) as refused:
        FitSpec([MethodSpec("auto", params)]).check()
    assert refused.value.code == "fit_too_large"
    assert refused.value.details["limit"] == LONGEST_SPEC


def test_a_candidate_is_named_once() -> None:
    with pytest.raises(ParameterError, match="each method once, got 'ets'"):
        make_recipe("auto", {"candidates": ["ets", "temperature", "ets"]})


def test_recipes_are_made_before_the_write_lock(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = place.dataset()
    request = FitRequest("digits", FitSpec([MethodSpec("auto")]), dataset.id)
    request.check()
    monkeypatch.setattr(fits, "make_recipe", None)
    caller = Principal(place.workspace, "tests", frozenset({Scope.FIT}))
    with place.database.write() as store:
        fits.submit(store, caller, request, dataset=dataset.id, memory_limit=1 << 40)


def test_a_fit_request_is_checked_and_written_on_fairly_shared_threads(
    tenant: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    check, submit = FitRequest.check, fits.submit

    def checked(request: FitRequest) -> None:
        threads.append(threading.current_thread().name)
        check(request)

    def submitted(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread().name)
        return submit(*args, **kwargs)

    monkeypatch.setattr(FitRequest, "check", checked)
    monkeypatch.setattr(fits, "submit", submitted)
    headers = {"Content-Type": "application/x-npz"}
    dataset = tenant.post("/v1/datasets", content=npz(**logits_and_labels(60)), headers=headers)
    body = {"dataset": dataset.json()["id"], "method": "temperature"}
    assert tenant.post("/v1/calibrators/a/fits", json=body).status_code == 202
    assert [name.partition("_")[0] for name in threads] == ["parse", "query"]


@pytest.mark.parametrize("name", ["params", "tags"])
def test_deep_documents_in_the_query_are_refused(client: httpx.Client, name: str) -> None:
    deep = '{"a":' + "[" * 600 + "]" * 600 + "}"
    refused = client.post(
        "/v1/calibrators/a/fits",
        params={"method": "temperature", name: deep},
        content=b"not read",
        headers={"Content-Type": "application/x-npz"},
    )
    assert (refused.status_code, refused.json()["code"]) == (422, "too_deep")
