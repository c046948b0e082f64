"""Base class for maps that need the features of each row."""

from __future__ import annotations

from abc import abstractmethod

from numpy.typing import ArrayLike

from calibrators.arrays import check_rows, row_maxima
from calibrators.base import CalibrationMap
from calibrators.data import CalibrationSet
from calibrators.errors import DataError, ExportError, ParameterError
from calibrators.export.onnx import Builder
from calibrators.features import MAX_FEATURES, as_features
from calibrators.numerics.parallel import Floats


class FeatureMap(CalibrationMap):
    """A map that requires the features of each row, and raises if they are missing."""

    has_features = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_arrays()
        if not 1 <= self.feature_count <= MAX_FEATURES:
            raise ParameterError(
                "bad_parameter",
                f"a map must take 1 to {MAX_FEATURES:,} features, got {self.feature_count:,}",
            )

    @abstractmethod
    def _check_arrays(self) -> None:
        """Raise a ParameterError unless the arrays have valid shapes and values."""

    @property
    @abstractmethod
    def feature_count(self) -> int:
        """Number of features per row."""

    @abstractmethod
    def _transform_features(self, logits: Floats, features: Floats) -> Floats:
        """Return the calibrated logits (n, k), given checked logits (n, k) and features (n, d)."""

    def apply_set(self, data: CalibrationSet) -> Floats:
        """Return the calibrated probabilities (n, k) of a set that has features."""
        features = None if data.features is None else data.features.values
        return self._softmax(self._transform_with(self._logits_of_set(data), features))

    def onnx_logits(self, graph: Builder, logits: str) -> str:
        """Raise an ExportError, as the logits are the only input of an exported graph."""
        raise ExportError(
            "not_exportable",
            f"a map of the method {self.method!r} needs the features of each row, which an "
            "exported model does not accept: apply it with the SDK or the service",
        )

    def _transform(self, logits: Floats) -> Floats:
        return self._transform_with(logits, None)

    def _transform_with(self, logits: Floats, features: ArrayLike | None) -> Floats:
        check_rows(row_maxima(logits))
        if features is None:
            raise DataError(
                "missing_features",
                f"this map of the method {self.method!r} needs the {self.feature_count} features "
                "of each row: pass features=",
            )
        checked = as_features(features, rows=len(logits), width=self.feature_count)
        return self._transform_features(logits, checked)
