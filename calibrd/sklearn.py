"""scikit-learn classifiers with calibrated probabilities.

>>> from sklearn.datasets import load_digits
>>> from sklearn.naive_bayes import GaussianNB
>>> X, y = load_digits(return_X_y=True)
>>> model = CalibratedModel(GaussianNB(), calibrator="temperature").fit(X, y)
>>> model.predict_proba(X[:2]).shape, str(model.report_.verdict)
((2, 10), 'improved')
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

try:
    from sklearn import get_config
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
    from sklearn.frozen import FrozenEstimator
    from sklearn.model_selection import StratifiedKFold, check_cv, cross_val_predict
    from sklearn.utils import check_array, column_or_1d, get_tags, indexable
    from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, has_fit_parameter
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "calibrd.sklearn needs scikit-learn 1.6 or newer: pip install 'calibrd[sklearn]'",
        name=error.name,
    ) from error

from calibrators import CalibrationMap, CalibrationSet, Calibrator, Report, fit_and_judge
from calibrators.registry import DEFAULT_METHOD, make_recipe

__all__ = ["CalibratedModel"]

Array = NDArray[Any]
RESPONSES = ("decision_function", "predict_log_proba", "predict_proba")
LEAST = np.finfo(np.float64).eps


class CalibratedModel(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose outputs are calibrated by a map fitted on out-of-sample outputs.

    The map is fitted on out-of-fold outputs from ``cv`` (a number of stratified folds, or a
    splitter that tests every row once); then the estimator is fitted on all rows. An estimator in
    ``FrozenEstimator`` is not refitted: call ``fit`` with rows that it was not trained on.
    ``calibrator`` is the name of a method with its ``params``, or a recipe such as
    ``Smart(steps=100)``. ``seed`` shuffles the folds and is passed to the method.

    The ``decision_function`` of the estimator is used if it has one, else ``predict_log_proba``,
    else ``predict_proba``. Probabilities are clipped to at least 2.2e-16; otherwise the
    logarithms of a few tiny values (naive Bayes, trees, forests) would dominate the fit.
    ``sample_weight`` is passed to the estimator; the map and the report weight all rows equally.

    Fitted attributes: ``estimator_``, ``map_`` (register it with ``client.register(name,
    model.map_, model.report_)``), ``report_``, ``calibration_set_`` (the outputs and labels that
    the map was fitted on; they are part of a pickled model), ``classes_``, ``response_`` (the name
    of the method whose output is used).
    """

    def __init__(
        self,
        estimator: Any,
        calibrator: str | Calibrator = DEFAULT_METHOD,
        *,
        cv: Any = 5,
        params: Mapping[str, Any] | None = None,
        seed: int = 0,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv
        self.params = params
        self.seed = seed
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the estimator and the map; ``y`` holds class labels of any type."""
        recipe = self._recipe()
        labels = self._checked(y)
        X, labels, sample_weight = indexable(X, labels, sample_weight)
        self.estimator_ = clone(self.estimator)
        self.response_ = _response_of(self.estimator_)
        weights = self._fit_params(sample_weight)
        if isinstance(self.estimator, FrozenEstimator):
            self.classes_ = self.estimator_.classes_
            outputs = self._outputs(X)
        else:
            self.classes_ = np.unique(labels)
            outputs = self._out_of_fold(X, labels, weights)
            self.estimator_.fit(X, labels, **weights)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        self.calibration_set_ = self._calibration_set(outputs, labels)
        self.map_: CalibrationMap = recipe.fit(self.calibration_set_)
        self._judging = recipe, self.seed, isinstance(self.estimator, FrozenEstimator)
        self._report: Report | None = None
        return self

    @property
    def report_(self) -> Report:
        """The report of the method on held-out rows, computed on first access."""
        check_is_fitted(self)
        if self._report is None:
            recipe, seed, frozen = self._judging  # the parameters may have changed since
            judged = fit_and_judge(recipe, self.calibration_set_, seed=seed)
            folds = "a frozen estimator" if frozen else "estimators fitted on the other folds"
            self._report = judged.report.with_fit(outputs=f"{self.response_} of {folds}")
        return self._report

    def predict_proba(self, X: Any) -> Array:
        """Return calibrated probabilities (n, k), in the order of ``classes_``."""
        outputs = self._outputs(X)
        return self.map_.apply(outputs)

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithms of the calibrated probabilities (n, k)."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X)))

    def decision_function(self, X: Any) -> Array:
        """Return calibrated logits (n, k); for two classes, log odds (n,) of the second class."""
        outputs = self._outputs(X)
        logits = self.map_.transform(outputs)
        return np.asarray(logits[:, 1] - logits[:, 0]) if logits.shape[1] == 2 else logits

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row."""
        likeliest = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[likeliest])

    def get_metadata_routing(self) -> Any:
        """Return the router that forwards the metadata of ``fit`` to the estimator."""
        mapping = MethodMapping().add(caller="fit", callee="fit")
        router = MetadataRouter(owner=self).add_self_request(self)
        return router.add(estimator=self.estimator, method_mapping=mapping)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.input_tags = dataclasses.replace(inner.input_tags)
        tags.classifier_tags.multi_class = inner.classifier_tags.multi_class
        return tags

    def _recipe(self) -> Calibrator:
        if not isinstance(self.calibrator, Calibrator):
            return make_recipe(self.calibrator, self.params or {}, seed=self.seed)
        if self.params:
            raise ValueError(
                "params can only be combined with a method name: set the fields of the recipe "
                "instead"
            )
        return self.calibrator

    def _checked(self, y: Any) -> Array:
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, "
                "but the target y is None"
            )
        flat = column_or_1d(y, warn=True)
        labels: Array = check_array(flat, ensure_2d=False, dtype=None, input_name="y")
        check_classification_targets(labels)
        return labels

    def _fit_params(self, sample_weight: Any) -> dict[str, Any]:
        if sample_weight is None:
            return {}
        if isinstance(self.estimator, FrozenEstimator):
            raise ValueError(
                "sample_weight cannot be used: the estimator is frozen, and the map is unweighted"
            )
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", sample_weight=sample_weight)
            return dict(routed.estimator.fit)
        if not has_fit_parameter(self.estimator_, "sample_weight"):
            raise ValueError(f"{type(self.estimator).__name__}.fit does not take sample_weight")
        return {"sample_weight": sample_weight}

    def _out_of_fold(self, X: Any, labels: Array, params: dict[str, Any]) -> Array:
        counts = np.unique(labels, return_counts=True)[1]
        if len(counts) < 2:
            raise ValueError("a classifier needs at least 2 classes, got 1 class")
        cv = self.cv
        if isinstance(cv, int):
            if counts.min() < cv:
                raise ValueError(
                    f"cv={cv} needs at least {cv} rows of every class, "
                    f"but one class has only {counts.min()}"
                )
            cv = StratifiedKFold(cv, shuffle=True, random_state=self.seed)
        with np.errstate(divide="ignore"):
            outputs = cross_val_predict(
                self.estimator_,
                X,
                labels,
                cv=check_cv(cv, labels, classifier=True),
                method=self.response_,
                n_jobs=self.n_jobs,
                params=params,
            )
        return self._rows(outputs)

    def _calibration_set(self, rows: Array, labels: Array) -> CalibrationSet:
        unknown = np.setdiff1d(labels, self.classes_)
        if unknown.size:
            raise ValueError(
                f"y contains the class {unknown.tolist()[0]!r}, which the frozen estimator "
                "was not fitted on"
            )
        order = np.argsort(self.classes_)  # the classes of a frozen estimator may be in any order
        index = order[np.searchsorted(self.classes_, labels, sorter=order)]
        if self.response_ == "predict_proba":
            return CalibrationSet.from_probabilities(rows, index)
        return CalibrationSet(rows, index)

    def _outputs(self, X: Any) -> Array:
        check_is_fitted(self)
        with np.errstate(divide="ignore"):  # trees may return probabilities of zero
            return self._rows(getattr(self.estimator_, self.response_)(X))

    def _rows(self, outputs: Array) -> Array:
        """Return outputs as (n, k); two-class outputs may be a single column."""
        rows = np.asarray(outputs, dtype=np.float64)
        if self.response_ != "decision_function":
            least = LEAST if self.response_ == "predict_proba" else np.log(LEAST)
            rows = np.maximum(rows, least)
        elif rows.ndim == 1 or rows.shape[1] == 1:
            rows = np.column_stack((np.zeros(len(rows)), rows))
        if rows.shape[1] != len(self.classes_):
            raise ValueError(
                f"{self.response_} must return {len(self.classes_)} columns, one per class, got "
                f"{rows.shape[1]}; an SVC needs decision_function_shape='ovr'"
            )
        return rows


def _response_of(estimator: Any) -> str:
    for name in RESPONSES:
        if hasattr(estimator, name):
            return name
    raise TypeError(f"{type(estimator).__name__} must have one of {', '.join(RESPONSES)}")
