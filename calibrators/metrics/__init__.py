"""Calibration metrics: pure numpy functions `f(probabilities, labels, ...) -> float`.

`probabilities` are (n, k) with rows that sum to 1, or (n,) / (n, 1) for the probability of class 1;
`labels` are integers (n,). Top-label metrics also take a `TopLabel` in place of the two arrays, so
that a report reads all classes and sorts the rows only once.
"""

import inspect as _inspect

from calibrators.metrics._noise_floor import *
from calibrators.metrics._sorted import *
from calibrators.metrics.agreement import *
from calibrators.metrics.bins import *
from calibrators.metrics.calibration import *
from calibrators.metrics.chance import *
from calibrators.metrics.classwise import *
from calibrators.metrics.estimates import *
from calibrators.metrics.intervals import *
from calibrators.metrics.lipschitz import *
from calibrators.metrics.report_inputs import *
from calibrators.metrics.scores import *
from calibrators.metrics.selective import *
from calibrators.metrics.smooth import *
from calibrators.metrics.soft import *
from calibrators.metrics.toplabel import *

# the names are listed once, in __all__ of the module that defines them
__all__ = sorted(
    name
    for name, one in globals().items()
    if not name.startswith("_") and not _inspect.ismodule(one)
)
