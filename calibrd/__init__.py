"""calibrd: calibrated probabilities as a versioned, tested contract.

>>> import calibrd
>>> client = calibrd.Client("http://127.0.0.1:8000")
"""

from importlib import metadata

from calibrd.client import AsyncClient, Client
from calibrd.fitting import fingerprint, fit_local
from calibrd.local_map import LocalMap
from calibrd.results import Alias, Dataset, Fit, Move, Version
from calibrd.run_results import Run, RunSession, RunState, RunStep, StepDecision

__all__ = [
    "Alias",
    "AsyncClient",
    "Client",
    "Dataset",
    "Fit",
    "LocalMap",
    "Move",
    "Run",
    "RunSession",
    "RunState",
    "RunStep",
    "StepDecision",
    "Version",
    "__version__",
    "fingerprint",
    "fit_local",
]

__version__ = metadata.version("calibrd")
