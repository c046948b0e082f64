"""The default method is the same everywhere."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import calibrd
from calibrators import all_methods
from calibrators.registry import DEFAULT_METHOD
from calibrd.cli.arguments import command_parser
from calibrd.cli.fit import _methods as cli_methods
from service.fits.routes import _methods
from service.fits.schemas import FitIn
from service.web.pages.new_fit import choices


def default(function: Any, name: str) -> Any:
    return inspect.signature(function).parameters[name].default


def test_the_default_is_a_method() -> None:
    assert DEFAULT_METHOD in all_methods()


def test_the_sdk() -> None:
    for client in (calibrd.Client, calibrd.AsyncClient):
        assert default(client.fit, "method") == DEFAULT_METHOD
        assert default(client.start_fit, "methods") == (DEFAULT_METHOD,)
    assert default(calibrd.fit_local, "method") == DEFAULT_METHOD


def test_scikit_learn() -> None:
    sklearn = pytest.importorskip("calibrd.sklearn")
    assert default(sklearn.CalibratedModel, "calibrator") == DEFAULT_METHOD


def test_the_command_line() -> None:
    flags = command_parser().parse_args(["fit", "val.npz", "--name", "m"])
    assert cli_methods(flags) == [(DEFAULT_METHOD, {})]


def test_the_service_and_its_dashboard() -> None:
    (asked,) = _methods(FitIn(dataset="ds_0"))
    assert (asked.method, asked.params) == (DEFAULT_METHOD, {})
    assert [one.name for one in choices() if one.is_chosen] == [DEFAULT_METHOD]
