"""The service is down, silent, slow or killed, or the disk is full: training continues in time."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.faulty_http_proxy import (
    FaultyLine,
    Lost,
    ReceivedRequest,
    Say,
    faulty_line,
    first,
    lose,
)
from helpers.live_service import Running, by_the_clock, wait_until
from helpers.training_passes import has_line, line_of, nobody, passes, stepped, unsent

import calibrd
from calibrators.adafocal import AdaFocalState
from calibrd.training import AdaFocal, Monitor
from calibrd.training.reporting.outbox import Outbox

BUDGET = 0.4
# a busy machine may be late in waking a thread
SLACK = 0.8


class Watch:
    """Checks that no call takes longer than the budget."""

    def __init__(self) -> None:
        self.longest = 0.0

    def __call__(self, do: Callable[[], object]) -> object:
        begun = time.monotonic()
        try:
            return do()
        finally:
            self.longest = max(self.longest, time.monotonic() - begun)


def trained(url: str, run: str, **options: object) -> tuple[AdaFocalState, Watch]:
    """Train three steps; return the final state and the durations of the calls."""
    watch = Watch()
    job = watch(lambda: AdaFocal(url, run=run, budget=BUDGET, rate=3.0, **options))
    assert isinstance(job, AdaFocal)
    for logits, labels in passes(3):
        watch(lambda: job.loss(logits, labels))  # noqa: B023
        watch(lambda: job.observe(logits, labels))  # noqa: B023
        watch(job.step)
    watch(job.close)
    return job.state, watch


def of_calibrd() -> set[threading.Thread]:
    """Return the threads that send and write steps."""
    return {one for one in threading.enumerate() if one.name.startswith("calibrd-")}


@pytest.fixture(scope="module")
def wanted() -> AdaFocalState:
    """Return the state after the same three steps without a service."""
    job = AdaFocal(None, run="alone", rate=3.0)
    stepped(job, *passes(3))
    return job.state


@contextmanager
def black_hole() -> Iterator[str]:
    """Run a server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@by_the_clock
@pytest.mark.parametrize("place", [nobody, black_hole])
def test_away_from_the_beginning(
    place: Callable[[], Iterator[str]],
    wanted: AdaFocalState,
    service: Running,
    client: calibrd.Client,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    run = f"from-{place.__name__.replace('_', '-')}"
    with place() as url:
        state, watch = trained(url, run)
    assert state == wanted
    assert watch.longest < BUDGET + SLACK
    begun = [one for one in caplog.messages if "training begins at step 0" in one]
    assert len(begun) == 1
    assert "\n" not in begun[0]
    assert unsent(tmp_path) == [1, 2, 3]


@by_the_clock
@pytest.mark.parametrize("place", [nobody, black_hole])
def test_a_rank_whose_peers_never_arrive(
    place: Callable[[], Iterator[str]], wanted: AdaFocalState
) -> None:
    with place() as url:
        state, watch = trained(url, "in-vain", rank=1, world_size=2, session="job")
    assert state == wanted
    assert watch.longest < BUDGET + SLACK


@by_the_clock
def test_slow_name_resolution_does_not_delay_training(
    wanted: AdaFocalState, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = socket.getaddrinfo

    def slow(*args: object, **options: object) -> object:
        time.sleep(3)
        return found(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    state, watch = trained("http://localhost:9", "slow-names")
    assert state == wanted
    assert watch.longest < BUDGET + SLACK


@by_the_clock
def test_silent_in_the_middle_and_back_again(
    wanted: AdaFocalState, line: FaultyLine, client: calibrd.Client
) -> None:
    """Requests during the second step get no response."""
    watch, is_silent = Watch(), threading.Event()

    def before(asked: ReceivedRequest) -> Say | None:
        if is_silent.is_set():
            time.sleep(2.5)
            raise Lost
        return None

    line.before = before
    first, second, third = passes(3)
    job = AdaFocal(line.url, run="silent", budget=BUDGET, rate=3.0)
    job.observe(*first)
    watch(job.step)
    is_silent.set()
    job.observe(*second)
    watch(job.step)
    job.observe(*third)
    watch(job.step)
    is_silent.clear()
    wait_until(lambda: has_line(client, "silent", 1, 2, 3))
    watch(job.close)
    assert job.state == wanted
    assert watch.longest < BUDGET + SLACK


def test_lost_responses_are_requested_again(
    wanted: AdaFocalState, line: FaultyLine, client: calibrd.Client
) -> None:
    counts = {"left": 6}

    def after(asked: ReceivedRequest) -> Say | None:
        counts["left"] -= 1
        if counts["left"] >= 0 and counts["left"] % 2:
            return lose()
        return Say(503) if counts["left"] == 2 else None

    line.after = after
    state, _ = trained(line.url, "lost-answers")
    assert state == wanted
    with AdaFocal(line.url, run="lost-answers", rate=3.0, budget=30):
        pass  # sends any unsent steps
    assert line_of(client, "lost-answers") == [1, 2, 3]


def test_a_late_beginning_is_complete_in_the_end(
    wanted: AdaFocalState, service: Running, client: calibrd.Client
) -> None:
    """Training begins without the service, which is available for the last step."""
    is_away = threading.Event()
    is_away.set()
    with faulty_line(service.url) as line:
        line.before = lambda asked: lose() if is_away.is_set() else None
        job = AdaFocal(line.url, run="late", budget=BUDGET, rate=3.0)
        first, second, third = passes(3)
        stepped(job, first, second)
        is_away.clear()
        stepped(job, third)
        wait_until(lambda: line.count("POST", "/3/stats"))
        job.close()
    assert job.state == wanted
    assert line_of(client, "late") == [1, 2, 3]


def test_the_next_process_sends_leftovers_and_continues_from_them(
    wanted: AdaFocalState, service: Running, client: calibrd.Client
) -> None:
    is_away = threading.Event()
    is_away.set()
    first, second, third = passes(3)
    with faulty_line(service.url) as line:
        line.before = lambda asked: lose() if is_away.is_set() else None
        for batch in (first, second):  # two jobs that never reach the service
            with AdaFocal(line.url, run="left", budget=BUDGET, rate=3.0) as job:
                stepped(job, batch)
        assert job.state.step == 2
        is_away.clear()
        with AdaFocal(line.url, run="left", budget=30, rate=3.0) as job:
            assert job.state.step == 2
            stepped(job, third)
    assert job.state == wanted
    assert line_of(client, "left") == [1, 2, 3]
    assert len({step.session for step in client.run_history("left")}) == 3


@by_the_clock
def test_a_read_only_folder_is_logged_once(
    wanted: AdaFocalState,
    client: calibrd.Client,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").touch()
    state, watch = trained(client.url, "no-folder", folder=tmp_path / "file" / "below")
    assert state == wanted
    assert watch.longest < BUDGET + SLACK
    assert len([one for one in caplog.messages if "cannot write to" in one]) == 1
    wait_until(lambda: has_line(client, "no-folder", 1, 2, 3))


@by_the_clock
def test_a_hanging_disk_does_not_delay_training(
    wanted: AdaFocalState, client: calibrd.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that cannot be written are sent nevertheless."""
    is_awake = threading.Event()
    monkeypatch.setattr(Outbox, "add", lambda *_: is_awake.wait(60))
    state, watch = trained(client.url, "slow-disk")
    assert state == wanted
    assert watch.longest < BUDGET + SLACK
    wait_until(lambda: has_line(client, "slow-disk", 1, 2, 3))
    is_awake.set()


@by_the_clock
def test_a_later_refusal_is_logged_once_and_its_steps_are_kept(
    line: FaultyLine,
    client: calibrd.Client,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    before = of_calibrd()
    told = b'{"code": "forbidden", "detail": "this key may not write"}'
    line.before = lambda asked: Say(403, {}, told) if asked.place.endswith("/stats") else None
    state, watch = trained(line.url, "forbidden")
    assert state.step == 3
    assert watch.longest < BUDGET + SLACK
    wait_until(lambda: "may not write" in caplog.text)
    assert len([one for one in caplog.messages if "may not write" in one]) == 1
    assert unsent(tmp_path) == [1, 2, 3]
    wait_until(lambda: not of_calibrd() - before)
    line.before = lambda asked: None
    Monitor(line.url, run="other").close()
    with AdaFocal(line.url, run="forbidden", rate=3.0, budget=30):
        pass
    assert line_of(client, "forbidden") == [1, 2, 3]


@pytest.mark.parametrize("kind", [AdaFocal, Monitor])
def test_a_session_lost_by_the_service_continues_as_another(
    kind: type[AdaFocal | Monitor], line: FaultyLine, client: calibrd.Client
) -> None:
    told = b'{"code": "no_such_session", "detail": "there is no such session"}'
    line.before = first(1, lambda: Say(404, {}, told), "POST", "/2/stats")
    run = f"lost-{kind.kind}"
    with kind(line.url, run=run, budget=30) as job:
        stepped(job, *passes(3))
        wait_until(lambda: line_of(client, run) == [1, 2, 3])
    assert len({step.session for step in client.run_history(run)}) == 2


def test_a_deleted_observer_still_sends(client: calibrd.Client) -> None:
    """Without close and without references, its threads finish sending and stop."""
    before = of_calibrd()
    job = AdaFocal(client, run="dropped")
    stepped(job, passes(1)[0])
    del job
    wait_until(lambda: of_calibrd() <= before)
    assert line_of(client, "dropped") == [1]


def test_a_closed_observer_stays_closed(client: calibrd.Client) -> None:
    job = Monitor(client, run="closed")
    job.close()
    job.close()
    job.observe(*passes(1)[0])
    with pytest.raises(RuntimeError, match="is closed"):
        job.step()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_neither_sends_nor_holds_the_folder(
    client: calibrd.Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with nobody() as url:
        job = AdaFocal(url, run="forking", budget=1)
        stepped(job, passes(1)[0])
        child = os.fork()
        if not child:
            time.sleep(20)
            os._exit(0)
        try:
            job.close()
            with AdaFocal(url, run="forking", budget=0.1) as job:
                assert job.state.step == 1, "the folder was still held"
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
