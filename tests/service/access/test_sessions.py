"""Dashboard sessions: the maximum number per key, and lookups that delay no one else."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from helpers.dashboard_pages import HTML, make_key, sign_in
from helpers.live_service import in_process

from service.access import sessions
from service.access.permissions import Scope


def test_the_oldest_session_of_a_key_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 3)
    with in_process(tmp_path) as service:
        mine, other = (make_key(service, Scope.ADMIN).split("_")[1] for _ in range(2))
        found = service.app.state.parts.sessions
        of_other = found.begin(other)
        tokens = [found.begin(mine) for _ in range(5)]
        assert [found.key_of(one) for one in tokens] == [None, None, mine, mine, mine]
        assert found.key_of(of_other) == other


def test_unknown_sessions_do_not_delay_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_process(tmp_path) as service, ThreadPoolExecutor(40) as threads:
        sign_in(service, make_key(service, Scope.ADMIN))
        found, ended = service.app.state.parts.sessions, threading.Event()
        key_of = found.key_of

        def slow_if_unknown(token: str) -> str | None:
            if token.startswith("unknown"):
                ended.wait(60)
            return key_of(token)

        monkeypatch.setattr(found, "key_of", slow_if_unknown)
        assert service.get("/", headers=HTML).status_code == 200

        def unknown(number: int) -> int:
            cookie = {"Cookie": f"calibrd_session=unknown{number}"}
            return httpx.get(f"{service.base_url}/v1/runs", headers=cookie, timeout=60).status_code

        try:
            others = [threads.submit(unknown, number) for number in range(40)]
            time.sleep(0.5)
            assert service.get("/", headers=HTML, timeout=10).status_code == 200
            assert not any(one.done() for one in others)
        finally:
            ended.set()
        assert {one.result() for one in others} == {401}
