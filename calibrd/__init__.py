"""calibrd: calibrated probabilities as a versioned, tested contract.

>>> import calibrd
>>> client = calibrd.Client("http://127.0.0.1:8000")
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from calibrd.client import AsyncClient, Client
from calibrd.maps.local_fit import fingerprint, fit_local
from calibrd.maps.local_map import LocalMap
from calibrd.models import Alias, Comparison, Dataset, Fit, Move, Version
from calibrd.run_models import Run, RunSession, RunState, RunStep, StepDecision

__all__ = [
    "Alias",
    "AsyncClient",
    "Client",
    "Comparison",
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

# imported on first use: some need an optional extra
LAZY = ("batch", "errors", "sklearn", "torch", "training")

if TYPE_CHECKING:
    from calibrd import batch, errors, sklearn, torch, training  # noqa: F401
else:

    def __getattr__(name: str) -> Any:
        """Import a submodule on first use; a ModuleNotFoundError names the missing extra."""
        if name in LAZY:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
