"""Calls over an unreliable connection: safe calls are retried, and nothing is done twice."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from helpers.faulty_http_proxy import FaultyLine, ReceivedRequest, Say, first, lose
from helpers.live_service import sample
from helpers.refusals import refused

import calibrd
from calibrators import CalibrationSet
from calibrators.methods.temperature import TemperatureScaling
from calibrd import errors
from calibrd.transport.connection import Connection
from calibrd.transport.flows import Pause, Response, Send

LOGITS, LABELS = sample(seed=2101)  # no other test uploads this
FITTED = TemperatureScaling().fit(CalibrationSet(LOGITS, LABELS))
FORCED = {"force": True, "reason": "it has no report"}
BUSY = Say(503, {"Content-Type": "text/html"}, b"<h1>nobody behind this proxy</h1>")


@pytest.fixture
def over(line: FaultyLine) -> Iterator[calibrd.Client]:
    """Return a client that uses the faulty connection to the shared service."""
    with calibrd.Client(line.url, retry_seconds=20.0) as made:
        yield made


def test_a_short_outage_of_the_service_is_waited_out(
    over: calibrd.Client, line: FaultyLine
) -> None:
    line.before = first(2, lambda: BUSY)
    assert over.methods()
    line.before = first(2, lose)
    assert over.methods()
    assert line.count("GET", "/methods") == 6


def test_the_same_awaited(line: FaultyLine) -> None:
    async def work() -> int:
        async with calibrd.AsyncClient(line.url) as client:
            return len(await client.methods())

    line.before = first(1, lambda: BUSY)
    assert asyncio.run(work())
    line.after = first(1, lose)
    assert asyncio.run(work())
    assert line.count("GET") == 4


class Retries:
    """A request whose pauses pass at once on a simulated clock."""

    def __init__(self, retry_seconds: float, *answers: Response) -> None:
        self._answers = [*answers]
        self.pauses: list[float] = []
        self._connection = replace(
            Connection.make("http://calibrd", None, timeout=1, retry_seconds=retry_seconds),
            clock=lambda: sum(self.pauses),
        )

    def run(self) -> Response:
        """Send the request; the last response is repeated."""
        flow = self._connection.send(Send("GET", "/v1/methods"), repeatable=True)
        step = next(flow)
        try:
            while True:
                if isinstance(step, Pause):
                    self.pauses.append(step.seconds)
                    step = next(flow)
                else:
                    answer = self._answers[0]
                    self._answers = self._answers[1:] or [answer]
                    step = flow.send(answer)
        except StopIteration as end:
            return end.value


def test_pauses_grow_and_are_drawn_at_random() -> None:
    busy = Response(503, {}, b"<h1>nobody behind this proxy</h1>")
    both = Retries(10.0, busy), Retries(10.0, busy)
    for one in both:
        with pytest.raises(errors.Unavailable, match="status 503"):
            one.run()
        highest = [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
        assert len(one.pauses) >= 5
        for pause, high in zip(one.pauses, highest, strict=False):
            assert high / 2 <= pause <= high
        assert sum(one.pauses) <= 10
    assert both[0].pauses[0] != both[1].pauses[0]


def test_retry_after_is_honoured() -> None:
    busy, ready = Response(503, {"retry-after": "1"}, b""), Response(200, {}, b"[]")
    soon = Retries(20.0, busy, ready)
    assert soon.run() is ready
    assert soon.pauses == [1.0]
    late = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    for asked_for in ("3600", late):
        never = Retries(20.0, Response(429, {"retry-after": asked_for}, b""))
        with pytest.raises(errors.Unavailable):  # it would be longer than our ``retry_seconds``
            never.run()
        assert never.pauses == []


@pytest.mark.parametrize("status", [500, 507])
def test_permanent_errors_are_raised_at_once(
    over: calibrd.Client, line: FaultyLine, status: int
) -> None:
    line.before = lambda asked: Say(status)
    with pytest.raises(errors.ServerError):
        over.methods()
    assert line.count("GET") == 1


def test_a_response_that_takes_too_long(line: FaultyLine) -> None:
    line.before = first(1, lambda: time.sleep(1))
    with (
        calibrd.Client(line.url, timeout=0.2, retry_seconds=0) as client,
        pytest.raises(errors.ServiceAway, match="timed out"),
    ):
        client.methods()


def test_calls_that_create_something_create_it_once(over: calibrd.Client, line: FaultyLine) -> None:
    line.after = first(2, lose, "POST")
    version = over.register("lost-answers", FITTED)
    assert (version.number, len(over.versions("lost-answers"))) == (1, 1)
    line.after = first(1, lose, "POST", "/datasets")
    dataset = over.upload(LOGITS, LABELS)
    assert line.count("POST", "/datasets") == 2
    line.after = first(2, lose, "POST", "/fits")
    fit = over.start_fit("lost-answers", dataset=dataset, methods=["temperature"])
    assert line.count("POST", "/fits") == 3
    assert [one.id for one in over.fits(calibrator="lost-answers")] == [fit.id]
    over.wait(fit, progress=False)
    line.after = first(1, lose, "PUT")
    over.promote("lost-answers", 1, **FORCED)
    assert len(over.history("lost-answers")) == 1
    line.after = first(1, lose, "DELETE")
    over.delete_dataset(fit.dataset)
    with refused("no_such_dataset"):
        over.delete_dataset(fit.dataset)


def test_unrepeatable_requests_are_not_repeated(over: calibrd.Client, line: FaultyLine) -> None:
    for _ in range(2):
        over.register("sent-once", FITTED)
    over.promote("sent-once", 1, **FORCED)
    over.promote("sent-once", 2, **FORCED)
    line.after = lambda asked: lose() if asked.method in ("POST", "PUT") else None
    with pytest.raises(errors.MaybeDone) as raised:
        over.rollback("sent-once")
    assert "may or may not have succeeded: client.history('sent-once'" in str(raised.value)
    with pytest.raises(errors.MaybeDone, match=r"client\.history"):
        over.promote("sent-once", 2, expected=3, **FORCED)
    assert line.count("POST", "/rollback") == 1
    assert [move.to_version for move in over.history("sent-once")] == [2, 1, 2, 1]


def test_keys_are_not_created_twice(over: calibrd.Client, line: FaultyLine) -> None:
    # before it reaches the service, where a key would lock out all other tests
    line.before = lambda asked: lose() if asked.method == "POST" else None
    for ask in (lambda: over.create_key("a", ["fit"]), lambda: over.rotate_key("b")):
        with pytest.raises(errors.MaybeDone, match=r"client\.keys\(\)"):
            ask()
    assert line.count("POST") == 2
    line.before = lambda asked: BUSY
    with pytest.raises(errors.Unavailable) as raised:
        over.create_key("a", ["fit"])
    assert "may or may not" in raised.value.__notes__[0]
    assert line.count("POST") == 3


def test_requests_that_cannot_have_arrived_are_retried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with calibrd.Client(f"http://127.0.0.1:{port}", retry_seconds=0.5) as client:
        began = time.monotonic()
        with pytest.raises(errors.ServiceAway, match="refused") as raised:
            client.rollback("nobody-there")
    assert type(raised.value) is errors.ServiceAway
    assert time.monotonic() - began > 0.1
    assert "CALIBRD_URL" in str(raised.value)


def test_an_identical_request_answered_in_the_meantime(
    over: calibrd.Client, line: FaultyLine
) -> None:
    problem = {"code": "idempotency_key_in_use", "detail": "send it again"}
    line.after = first(1, lambda: Say(409, {}, json.dumps(problem).encode()), "POST")
    assert over.register("meanwhile", FITTED).number == 1
    assert len(over.versions("meanwhile")) == 1


def test_many_calls_use_one_connection(over: calibrd.Client, line: FaultyLine) -> None:
    for _ in range(20):
        over.methods()
    assert len(line.asked) == 20
    assert line.connections == 1


def test_threads_share_a_client(over: calibrd.Client, line: FaultyLine) -> None:
    over.register("threads", FITTED)
    lost = first(8, lose)
    line.after = lambda asked: lost(asked) if asked.method == "GET" else None

    def work(number: int) -> list[float]:
        row = LOGITS[number : number + 1]
        for _ in range(2):
            assert over.get_version("threads@1").number == 1
        found = over.predict("threads@1", row)
        return [float(found.sum()), float(abs(found - FITTED.apply(row)).max())]

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(work, range(16)))
    assert all(total == pytest.approx(1) and off < 1e-6 for total, off in found)
    assert line.connections <= 16 + 8


def test_the_key_goes_to_the_service(line: FaultyLine) -> None:
    seen: list[ReceivedRequest] = []
    line.before = lambda asked: seen.append(asked) or Say(401, {}, b"{}")
    with (
        calibrd.Client(line.url, api_key=" cal_x_y\n") as client,
        pytest.raises(errors.NotCalibrd),
    ):
        client.methods()
    assert seen[0].headers["authorization"] == "Bearer cal_x_y"
    assert seen[0].headers["user-agent"].startswith("calibrd/")
