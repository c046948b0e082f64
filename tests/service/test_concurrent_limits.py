"""Limits hold under many concurrent calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from helpers.fit_fixtures import Place, add_version, principal

from service.access import keys
from service.access.permissions import Scope
from service.access.repository import Keys
from service.errors import ServiceError
from service.fits import service as fits
from service.fits.repository import Fits
from service.fits.service import FitRequest, FitSpec, MethodSpec
from service.registry.aliases import service as aliases
from service.registry.aliases.repository import Aliases

pytestmark = pytest.mark.both_backends

AT_ONCE = 6


def slow(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> None:
    """Delay each call after it has counted, so that others count as well."""
    count = getattr(kind, name)

    def counted(self: Any, workspace: str) -> int:
        found: int = count(self, workspace)
        time.sleep(0.1)
        return found

    monkeypatch.setattr(kind, name, counted)


def taken(call: Callable[[int], object]) -> int:
    """Return how many of many concurrent calls are accepted."""

    def is_taken(number: int) -> bool:
        try:
            call(number)
        except ServiceError as error:
            assert error.code.startswith("too_many_")  # noqa: PT017
            return False
        return True

    with ThreadPoolExecutor(AT_ONCE) as many:
        return sum(many.map(is_taken, range(AT_ONCE)))


def test_open_fits(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch, Fits, "count_open")
    datasets = [place.dataset().id for _ in range(AT_ONCE)]

    def submit(number: int) -> None:
        request = FitRequest("digits", FitSpec([MethodSpec("temperature")]), datasets[number])
        with place.database.write() as store:
            caller, dataset = principal(place), datasets[number]
            fits.submit(store, caller, request, dataset=dataset, most_open=2)

    assert taken(submit) == 2


def test_aliases(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aliases, "MAX_ALIASES", 2)
    slow(monkeypatch, Aliases, "count")
    add_version(place)

    def move(number: int) -> None:
        with place.database.write() as store:
            aliases.move(store, principal(place), "digits", f"a{number}", version=1)

    assert taken(move) == 2


def test_keys(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MAX_KEYS", 2)
    slow(monkeypatch, Keys, "count_live")

    def create(number: int) -> None:
        with place.database.write() as store:
            keys.create(store, place.workspace, name=f"k{number}", scopes=[Scope.ADMIN])

    assert taken(create) == 2
