"""A call of the SDK reaches every route of the service, except those left out for a reason."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
from helpers.faulty_http_proxy import ReceivedRequest, faulty_line
from helpers.live_service import in_process, sample
from helpers.refusals import refused
from helpers.route_table import NOT_IN_SDK

import calibrd
from calibrators import CalibrationSet
from calibrators.adafocal import BinStatistics
from calibrators.fitting.evaluation import fit_and_judge
from calibrators.methods.temperature import TemperatureScaling
from calibrd import errors
from calibrd.api import Calls

LOGITS, LABELS = sample(rows=1000)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


class Noting:
    """A client that records which calls were used."""

    def __init__(self, client: calibrd.Client, used: set[str]) -> None:
        self._client = client
        self._used = used

    def __getattr__(self, name: str) -> object:
        self._used.add(name)
        return getattr(self._client, name)


def every_call(url: str) -> set[str]:
    """Use every call once; the service has no workers, so fits stay queued."""
    used: set[str] = set()
    with calibrd.Client(url, part_bytes=4096, retry_seconds=1) as plain:
        client: calibrd.Client = Noting(plain, used)  # type: ignore[assignment]
        client.ready()
        client.methods()
        whole = client.upload(LOGITS[:60], LABELS[:60], progress=False)
        parts = client.upload(LOGITS, LABELS, progress=False)
        client.get_dataset(parts.id)
        client.datasets()
        client.delete_dataset(whole.id)
        about_fits(client, parts)
        about_versions(client)
        about_runs(client)
        about_keys(client, url, used)
    return used


def about_fits(client: calibrd.Client, dataset: calibrd.Dataset) -> None:
    with pytest.raises(errors.WaitedTooLong):
        client.fit("all", dataset=dataset, timeout=0.01, progress=False)
    ordered = client.start_fit("all", dataset=dataset, methods=["temperature", "identity"])
    with pytest.raises(errors.WaitedTooLong):
        client.wait(ordered, timeout=0.01, progress=False)
    client.fits(calibrator="all")
    client.get_fit(ordered.id)
    client.cancel(ordered)


def about_versions(client: calibrd.Client) -> None:
    judged = fit_and_judge(TemperatureScaling(), CalibrationSet(LOGITS, LABELS))
    for _ in range(2):
        client.register("all", *judged, judged_rows=judged.rows)
    client.compare("all", 1, 2)
    client.calibrators()
    client.get_calibrator("all")
    client.versions("all")
    client.get_version("all@1")
    client.report("all@1")
    client.annotate("all@1", tags={"a": "b"})
    client.promote("all", 1)
    client.promote("all", 2)
    client.get_alias("all")
    client.history("all")
    client.rollback("all")
    client.get_map("all@1")
    with refused("no_onnx"):  # made by workers only
        client.get_onnx("all@1")
    client.predict("all", LOGITS[:3])
    client.evaluate("all", LOGITS, LABELS)
    client.load("all@1", refresh=None)


def about_runs(client: calibrd.Client) -> None:
    session = client.open_run("all")
    statistics = BinStatistics.from_logits(LOGITS, LABELS)
    assert session.state is not None
    after = session.state.update(statistics)
    client.send_statistics("all", 1, statistics, session=session, state=after)
    client.run_state("all", after=0, wait=1)
    client.run_history("all")
    client.runs()
    client.get_run("all")
    client.update_run("all", archived=True)


def about_keys(client: calibrd.Client, url: str, used: set[str]) -> None:
    made = client.create_key("all", ["admin"])
    with calibrd.Client(url, made.token) as plain:
        known: calibrd.Client = Noting(plain, used)  # type: ignore[assignment]
        known.keys()
        other = known.rotate_key(made.key.id)
        known.revoke_key(other.key.id)


class Observed(NamedTuple):
    """The requests observed when every call was made once."""

    routes: set[str]
    reached: set[str]
    calls: set[str]


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    with (
        in_process(tmp_path_factory.mktemp("contract")) as local,
        faulty_line(str(local.base_url)) as line,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("CALIBRD_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        calls = every_call(line.url)
        paths = local.app.openapi()["paths"]
        routes = {f"{method.upper()} {path}" for path in paths for method in paths[path]}
        routes = {route for route in routes if route.startswith(METHODS)}
        return Observed(routes, {route_of(one, routes) for one in line.asked}, calls)


def route_of(asked: ReceivedRequest, routes: set[str]) -> str:
    """Return the route of a request, by the path templates of the OpenAPI document."""
    # fewest parameters first, because parts/presigned also matches parts/{number}
    for route in sorted(routes, key=lambda route: route.count("{")):
        method, path = route.split(" ")
        pattern = re.sub(r"\\\{\w+\\\}", "[^/@]+", re.escape(path))
        if method == asked.method and re.fullmatch(pattern, asked.place):
            return route
    raise AssertionError(f"no route of the document is {asked.method} {asked.place}")


def test_every_route_is_reached_or_left_out_for_a_reason(observed: Observed) -> None:
    left_out = NOT_IN_SDK.keys()
    assert sorted(observed.routes - observed.reached - left_out) == []
    assert sorted(observed.reached & left_out) == []
    assert sorted(left_out - observed.routes) == []
    assert all(NOT_IN_SDK.values())


def test_every_call_was_made(observed: Observed) -> None:
    calls = {name for name in dir(Calls) if hasattr(getattr(Calls, name), "flow")}
    assert sorted(calls - observed.calls) == []
