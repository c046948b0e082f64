"""All SDK calls, grouped by subject; each is written once, as a flow."""

from calibrd.api.aliases import AliasCalls
from calibrd.api.datasets import DatasetCalls
from calibrd.api.fits import FitCalls
from calibrd.api.keys import KeyCalls
from calibrd.api.local import LocalCalls
from calibrd.api.operations import OperationCalls
from calibrd.api.predictions import PredictCalls
from calibrd.api.runs import RunCalls
from calibrd.api.versions import VersionCalls


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
    """All calls of a client."""


__all__ = ["Calls"]
