"""Every call of the SDK, described once: a flow for each, gathered by what it is about."""

from calibrd.calls.aliases import AliasCalls
from calibrd.calls.datasets import DatasetCalls
from calibrd.calls.fits import FitCalls
from calibrd.calls.keys import KeyCalls
from calibrd.calls.local import LocalCalls
from calibrd.calls.operations import OperationCalls
from calibrd.calls.predicting import PredictCalls
from calibrd.calls.runs import RunCalls
from calibrd.calls.versions import VersionCalls


class Calls(
    AliasCalls,
    FitCalls,
    DatasetCalls,
    KeyCalls,
    LocalCalls,
    OperationCalls,
    PredictCalls,
    RunCalls,
    VersionCalls,
):
    """All of them."""


__all__ = ["Calls"]
