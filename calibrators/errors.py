"""Errors and warnings of this package.

CalibrationError
├── DataError          (ValueError)  invalid input, with the number of invalid rows and the first
├── ParameterError     (ValueError)  an invalid parameter, such as a field of a recipe
├── FitError                         a fit is not possible
│   └── FitCancelled                 the caller cancelled the fit
├── MapError                         a map yields probabilities that are not finite
├── ArchiveError       (ValueError)  bytes that are not an intact calibrd archive
└── ExportError                      a map cannot be exported, or its export differs

CalibrationWarning     (UserWarning)
├── LooksLikeProbabilities           logits whose rows lie in [0, 1] and sum to 1
├── ClippedProbabilities             zeros were raised, or rows were normalised
├── BoundarySolution                 the best temperature lies at or beyond its bound
├── FlatLogits                       the logits do not distinguish the classes
├── FellBack                         a method fell back to temperature scaling
├── NotConverged                     a fit made the objective worse, or missed its tolerance
├── SmallSample                      too few rows for the requested method
├── OutOfTime                        a search used up its time budget before trying all candidates
└── UnknownSegments                  rows in segments unknown to a map

Every error and every warning has a stable ``code`` for programs and a message for people.
"""

from __future__ import annotations

import sys
import warnings
from typing import ClassVar

from calibrators.error_codes import hint_of

LONGEST_MESSAGE = 2000
LONGEST_SHOWN = 80
PACKAGES = ("calibrators", "calibrd")


def shown(text: str) -> str:
    """Return a caller's string in quotes for a message, truncated if it is long.

    >>> shown("temprature"), len(shown("x" * 1000))
    ("'temprature'", 85)
    """
    return repr(text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}...")


class CalibrationError(Exception):
    """Base class for all errors raised by this package; long messages are truncated."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message[:LONGEST_MESSAGE])
        self.code = code

    @property
    def hint(self) -> str:
        """Advice for Python programs on how to fix the error; empty if there is none."""
        return hint_of(self.code)


class DataError(CalibrationError, ValueError):
    """Invalid input: ``rows`` rows violate ``rule``, the first of them at index ``first``."""

    def __init__(
        self, code: str, message: str, *, rows: int | None = None, first: int | None = None
    ) -> None:
        self.rule = message
        if rows is not None:
            noun = "row" if rows == 1 else "rows"
            message = f"{message} ({rows} invalid {noun}, first row {first})"
        super().__init__(code, message)
        self.rows = rows
        self.first = first


class ParameterError(CalibrationError, ValueError):
    """An invalid parameter, such as a field of a recipe."""


class FitError(CalibrationError):
    """A fit is not possible."""


class FitCancelled(FitError):
    """The caller cancelled the fit."""

    def __init__(self) -> None:
        super().__init__("cancelled", "the fit was cancelled by the caller")


class MapError(CalibrationError):
    """A map yields probabilities that are not finite, because its parameters are out of range."""

    def __init__(self, rows: int, first: int) -> None:
        noun = "row" if rows == 1 else "rows"
        super().__init__(
            "not_finite_probabilities",
            f"the map yields probabilities that are not finite for {rows} {noun}, first row "
            f"{first}: its parameters are out of range, so fit it again",
        )


class ArchiveError(CalibrationError, ValueError):
    """Bytes that are not an intact calibrd archive."""


class ExportError(CalibrationError):
    """A map cannot be exported, or its export does not agree with it."""


class CalibrationWarning(UserWarning):
    """Base class for all warnings issued by this package."""

    code: ClassVar[str] = "warning"


class LooksLikeProbabilities(CalibrationWarning):
    """Logits whose rows lie in [0, 1] and sum to 1."""

    code = "looks_like_probabilities"


class ClippedProbabilities(CalibrationWarning):
    """Probabilities of zero were raised, or rows that did not sum to 1 were normalised."""

    code = "clipped_probabilities"


class BoundarySolution(CalibrationWarning):
    """The best temperature lies at or beyond its bound."""

    code = "boundary_solution"


class FlatLogits(CalibrationWarning):
    """The logits do not distinguish the classes."""

    code = "flat_logits"


class FellBack(CalibrationWarning):
    """A method could not be fitted and returned a temperature map instead."""

    code = "fell_back"


class NotConverged(CalibrationWarning):
    """A fit made the objective worse than at its start, or missed its tolerance."""

    code = "not_converged"


class SmallSample(CalibrationWarning):
    """Too few rows for the requested method."""

    code = "small_sample"


class OutOfTime(CalibrationWarning):
    """A search used up its time budget before trying all candidates."""

    code = "out_of_time"


class UnknownSegments(CalibrationWarning):
    """Some rows are in segments unknown to a map; they get the calibration for all rows."""

    code = "unknown_segments"


def warn_user(message: str, category: type[Warning]) -> None:
    """Issue a warning that points to the caller's line outside these packages."""
    level, frame = 1, sys._getframe()
    while frame.f_back and str(frame.f_globals.get("__name__")).split(".")[0] in PACKAGES:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
