"""The maths behind calibrd: fit calibration maps, judge them, and apply them using only numpy.

>>> from calibrators import CalibrationSet
>>> from calibrators.methods.temperature import TemperatureScaling
>>> data = CalibrationSet([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]], [0, 0, 1, 1])
>>> TemperatureScaling().fit(data).apply([[4.0, 0.0]]).round(2).tolist()
[[0.75, 0.25]]
"""

from calibrators.base import CalibrationMap, Calibrator
from calibrators.data import CalibrationSet
from calibrators.errors import (
    ArchiveError,
    CalibrationError,
    CalibrationWarning,
    DataError,
    ExportError,
    FitCancelled,
    FitError,
    ParameterError,
)
from calibrators.fitting.evaluation import fit_and_judge
from calibrators.numerics.parallel import get_threads, set_threads
from calibrators.registry import all_methods, get_method
from calibrators.report.report import Report, evaluate

__all__ = [
    "ArchiveError",
    "CalibrationError",
    "CalibrationMap",
    "CalibrationSet",
    "CalibrationWarning",
    "Calibrator",
    "DataError",
    "ExportError",
    "FitCancelled",
    "FitError",
    "ParameterError",
    "Report",
    "all_methods",
    "evaluate",
    "fit_and_judge",
    "get_method",
    "get_threads",
    "set_threads",
]
