"""Other callers get responses whatever one caller sends: every route, and costly bodies."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
from helpers.call_generator import WANTED, Generated
from helpers.hostile.attacks import CLOSED, IS_FULL, Target, bodies_for, target, url_of, writes
from helpers.hostile.bodies import MEGABYTE, Body
from helpers.live_service import by_the_clock
from helpers.route_table import NEEDS

# in `make test` the bodies are smaller, and each route gets some of them
SIZE = 16 * MEGABYTE - 100 if IS_FULL else 3 * MEGABYTE
STEP = 1 if IS_FULL else 3


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target(tmp_path_factory.mktemp("attacked")) as started:
        yield started


def scope_of(call: str) -> str:
    need = NEEDS[call]
    return need if need in ("predict", "fit", "promote") else "admin"


@by_the_clock
@pytest.mark.parametrize("call", [f"{method} {path}" for method, path in writes()])
def test_costly_bodies_delay_no_other_caller(attacked, call):
    method, path = call.split()
    url = url_of(path, attacked.things)
    every = list(bodies_for(attacked, method, path, SIZE))
    chosen = every if IS_FULL else every[sum(map(ord, call)) % STEP :: STEP]
    with attacked.watched() as watched:
        statuses = attacked.send_all((method, url, scope_of(call), body) for body in chosen)
    failed = [
        body.name
        for body, status in zip(chosen, statuses, strict=True)
        if status >= 500 or status == CLOSED
    ]
    assert not failed, failed
    assert attacked.service.process.poll() is None
    watched.check()
    if IS_FULL:
        print(f"{call}: {len(chosen)} bodies; {watched}")  # noqa: T201


@by_the_clock
def test_costly_paths_queries_and_headers_delay_no_other_caller(attacked):
    long = "a" * 60_000
    odd = [
        "?" + "&".join(f"a{number}=1" for number in range(8000)),
        "?limit=" + "9" * 50_000,
        "?cursor=" + base64.urlsafe_b64encode(b"[" * 40_000).decode(),
        "?" + "%F0%9F%98%80" * 4000,
        "/" + "%2e%2e/" * 8000,
        "@" * 30_000,
    ]
    headers = [
        {"If-None-Match": ",".join(['"a"'] * 10_000)},
        {"Accept": ",".join(["a/b;q=0.1"] * 5000)},
        {"Cookie": ";".join(f"a{number}=1" for number in range(6000))},
        {"Prefer": "wait=" * 10_000},
        {"Content-Type": "application/json;" * 3000},
        {"Range": "bytes=" + "0-1," * 10_000},
    ]
    reads = [(call.split()[1], scope_of(call)) for call in NEEDS if call.startswith("GET")]
    reads = [one for one in reads if not one[0].endswith("/events")]
    nothing = Body("nothing", b"", "text/plain")
    calls = [
        ("GET", url_of(path, attacked.things) + odd[(place + turn) % len(odd)], scope, nothing)
        for place, (path, scope) in enumerate(reads)
        for turn in range(len(odd) if IS_FULL else 1)
    ]
    calls += [
        ("GET", url_of(path, attacked.things), scope, nothing._replace(headers=headers[place % 6]))
        for place, (path, scope) in enumerate(reads)
    ]
    calls += [("GET", f"/v1/calibrators/{long}", "admin", nothing)]
    with attacked.watched() as watched:
        statuses = attacked.send_all(calls, at_once=8)
    unready = ("/readyz", "/v2/health/ready")  # there is no worker here
    failed = [
        call[1][:60]
        for call, status in zip(calls, statuses, strict=True)
        if (status >= 500 or status == CLOSED) and not call[1].startswith(unready)
    ]
    assert not failed
    watched.check()


@by_the_clock
def test_generated_calls_delay_no_other_caller(attacked):
    with attacked.client() as admin:
        generated = Generated(admin, admin.get("/openapi.json").json())
        with attacked.watched() as watched:
            generated.run(3000 if IS_FULL else WANTED)
    assert not generated.failures, generated.failures
    watched.check()
