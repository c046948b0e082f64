"""Dashboard sessions: the maximum number per key."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.dashboard_pages import make_key
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
