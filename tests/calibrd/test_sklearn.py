"""CalibratedModel behaves like any other scikit-learn classifier."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import make_classification
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import check_estimator

from calibrators import CalibrationWarning, ParameterError, evaluate, get_method
from calibrators.methods.temperature import TemperatureScaling
from calibrd.sklearn import CalibratedModel

# duplicated columns violate naive Bayes's assumption and make it overconfident
X, Y = make_classification(1600, 8, n_informative=5, n_redundant=3, n_classes=3, random_state=0)
X = np.hstack([X, X, X])
SEEN, UNSEEN = slice(0, 800), slice(800, None)
NAMES = np.array(["cat", "dog", "eel"], dtype=object)

REASON = "the folds and the map count rows, so a weight of zero is not a missing row"
WEIGHTS = {
    "check_sample_weight_equivalence_on_dense_data": REASON,
    "check_sample_weight_equivalence_on_sparse_data": REASON,
}


@pytest.mark.parametrize(
    ("estimator", "calibrator", "params"),
    [
        (RidgeClassifier(), "temperature", None),
        (GaussianNB(), "smart", {"steps": 2}),
    ],
    ids=["temperature", "smart"],
)
def test_check_estimator(estimator: Any, calibrator: str, params: Any) -> None:
    model = CalibratedModel(estimator, calibrator, cv=2, params=params)
    with warnings.catch_warnings():
        # the checks fit tiny and separable sets, on which maps and some estimators warn
        warnings.simplefilter("ignore")
        results = check_estimator(model, on_skip=None, on_fail=None, expected_failed_checks=WEIGHTS)
    failed = {one["check_name"] for one in results if one["status"] == "failed"}
    assert failed == set()
    assert sum(one["status"] == "passed" for one in results) > 50


@pytest.fixture(scope="module")
def fitted() -> CalibratedModel:
    return CalibratedModel(GaussianNB(), "smart", params={"steps": 100}).fit(X[SEEN], Y[SEEN])


def test_it_calibrates_rows_it_never_saw(fitted: CalibratedModel) -> None:
    bare = GaussianNB().fit(X[SEEN], Y[SEEN])
    after = fitted.predict_proba(X[UNSEEN])
    report = evaluate(after, Y[UNSEEN], before=bare.predict_proba(X[UNSEEN]))
    assert report.verdict == "improved"
    assert (fitted.predict(X) == bare.predict(X)).all()
    assert fitted.score(X[UNSEEN], Y[UNSEEN]) == bare.score(X[UNSEEN], Y[UNSEEN])
    assert fitted.report_.verdict == "improved"
    assert fitted.report_ is fitted.report_
    assert fitted.report_.fit["outputs"].startswith("predict_log_proba of estimators fitted on")
    # the report agrees with held-out rows
    promised = fitted.report_.intervals["ece"]
    assert abs(promised.value - report.metrics["ece"]) < 0.03


def test_the_outputs_belong_together(fitted: CalibratedModel) -> None:
    p = fitted.predict_proba(X[:50])
    assert p.sum(axis=1) == pytest.approx(1)
    assert np.exp(fitted.predict_log_proba(X[:50])) == pytest.approx(p)
    z = np.exp(fitted.decision_function(X[:50]))
    assert z / z.sum(axis=1, keepdims=True) == pytest.approx(p)
    binary = CalibratedModel(LinearDiscriminantAnalysis(), "temperature").fit(X, Y > 0)
    odds = binary.decision_function(X[:50])
    assert binary.response_ == "decision_function"
    assert 1 / (1 + np.exp(-odds)) == pytest.approx(binary.predict_proba(X[:50])[:, 1])
    assert binary.classes_.tolist() == [False, True]


@pytest.mark.parametrize(
    ("estimator", "response", "kind"),
    [
        (LinearDiscriminantAnalysis(), "decision_function", "logits"),
        (SVC(), "decision_function", "logits"),
        (DecisionTreeClassifier(random_state=0), "predict_log_proba", "logits"),
        (KNeighborsClassifier(), "predict_proba", "probabilities"),
    ],
)
def test_which_output_is_used(estimator: Any, response: str, kind: str) -> None:
    model = CalibratedModel(estimator, "temperature").fit(X[SEEN], Y[SEEN])
    assert (model.response_, model.map_.kind) == (response, kind)
    assert np.isfinite(model.predict_proba(X[UNSEEN])).all()
    assert model.report_.n == 800


def test_no_output_decides_the_fit_alone() -> None:
    # for a nearly constant pixel, naive Bayes returns logarithms of minus millions
    wild = X[SEEN] * np.where(np.arange(X.shape[1]) == 0, 1e-9, 1)
    wild[:3, 0] += 1
    model = CalibratedModel(GaussianNB(var_smoothing=0), "temperature").fit(wild, Y[SEEN])
    assert model.calibration_set_.logits.min() == pytest.approx(np.log(np.finfo(float).eps))
    tree = CalibratedModel(DecisionTreeClassifier(random_state=0), "temperature")
    tree.fit(X[SEEN], Y[SEEN])
    assert tree.calibration_set_.logits.min() == pytest.approx(np.log(np.finfo(float).eps))


def test_names_of_classes_and_features() -> None:
    frame = pd.DataFrame(X[:, :4], columns=["a", "b", "c", "d"])
    model = CalibratedModel(GaussianNB(), "temperature").fit(frame, pd.Series(NAMES[Y]))
    assert model.classes_.tolist() == ["cat", "dog", "eel"]
    assert set(model.predict(frame)) <= {"cat", "dog", "eel"}
    assert model.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert model.n_features_in_ == 4
    plain = CalibratedModel(GaussianNB(), "temperature").fit(X[:, :4], Y)
    assert np.array_equal(plain.predict_proba(X[:, :4]), model.predict_proba(frame))


def test_a_frozen_estimator_is_not_fitted_again() -> None:
    bare = GaussianNB().fit(X[SEEN], NAMES[Y[SEEN]])
    model = CalibratedModel(FrozenEstimator(bare), TemperatureScaling())
    model.fit(X[UNSEEN], NAMES[Y[UNSEEN]])
    assert np.array_equal(
        model.calibration_set_.logits.argmax(1), bare.predict_proba(X[UNSEEN]).argmax(1)
    )
    assert np.array_equal(model.estimator_.theta_, bare.theta_)
    assert model.calibration_set_.n == 800
    few = Y[UNSEEN] != 2  # a class may be missing here
    assert CalibratedModel(FrozenEstimator(bare), "temperature").fit(
        X[UNSEEN][few], NAMES[Y[UNSEEN]][few]
    ).predict_proba(X[:5]).shape == (5, 3)
    with pytest.raises(ValueError, match="the class 'yak', which the frozen estimator was not"):
        model.fit(X[:3], ["cat", "yak", "dog"])
    with pytest.raises(ValueError, match="sample_weight cannot be used"):
        model.fit(X[:3], NAMES[Y[:3]], sample_weight=np.ones(3))


class Turned(ClassifierMixin, BaseEstimator):
    """Naive Bayes with its classes in an arbitrary order."""

    def fit(self, X: Any, y: Any) -> Turned:
        self.inner_ = GaussianNB().fit(X, y)
        self.classes_ = self.inner_.classes_[[1, 2, 0]]
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        return self.inner_.predict_proba(X)[:, [1, 2, 0]]


def test_the_classes_of_a_frozen_estimator_may_have_any_order() -> None:
    turned = Turned().fit(X[SEEN], NAMES[Y[SEEN]])
    model = CalibratedModel(FrozenEstimator(turned), "temperature")
    model.fit(X[UNSEEN], NAMES[Y[UNSEEN]])
    assert (model.predict(X) == turned.inner_.predict(X)).all()
    assert model.classes_[model.calibration_set_.labels].tolist() == NAMES[Y[UNSEEN]].tolist()


def test_changing_parameters_does_not_change_the_report_of_a_fit() -> None:
    model = CalibratedModel(GaussianNB(), "temperature").fit(X[SEEN], Y[SEEN])
    right = pickle.loads(pickle.dumps(model)).report_  # noqa: S301
    assert model.set_params(calibrator="identity", seed=7).report_ == right


def test_it_is_copied_saved_searched_and_put_in_pipelines(fitted: CalibratedModel) -> None:
    again = pickle.loads(pickle.dumps(fitted))  # noqa: S301
    assert np.array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert again.report_ == fitted.report_
    fresh = clone(fitted).set_params(
        estimator__var_smoothing=1e-3, calibrator="identity", params=None
    )
    assert fresh.get_params()["estimator__var_smoothing"] == 1e-3
    with pytest.raises(NotFittedError):
        fresh.predict(X)
    with pytest.raises(NotFittedError):
        _ = fresh.report_
    line = make_pipeline(StandardScaler(), CalibratedModel(GaussianNB(), "temperature"))
    grid = {"calibratedmodel__calibrator": ["identity", "temperature"]}
    search = GridSearchCV(line, grid, scoring="neg_log_loss", cv=3).fit(X[SEEN], Y[SEEN])
    assert search.best_params_ == {"calibratedmodel__calibrator": "temperature"}
    inner = CalibratedModel(make_pipeline(StandardScaler(), GaussianNB()), "temperature")
    assert inner.fit(X[SEEN], Y[SEEN]).response_ == "predict_log_proba"


def test_the_same_seed_gives_the_same_map() -> None:
    def temperature(**options: Any) -> float:
        model = CalibratedModel(GaussianNB(), "temperature", **options).fit(X[SEEN], Y[SEEN])
        return float(model.map_.temperature)

    assert temperature() == temperature() != temperature(seed=1)
    assert temperature(cv=KFold(4)) == temperature(cv=KFold(4))


def test_weights_reach_the_estimator() -> None:
    weight = np.where(Y[SEEN] == 0, 5.0, 1.0)
    model = CalibratedModel(GaussianNB(), "temperature")
    plain = model.fit(X[SEEN], Y[SEEN]).estimator_.class_prior_
    weighted = model.fit(X[SEEN], Y[SEEN], sample_weight=weight).estimator_.class_prior_
    assert weighted[0] > plain[0] + 0.2
    with pytest.raises(ValueError, match="does not take sample_weight"):
        CalibratedModel(KNeighborsClassifier(), "temperature").fit(
            X, Y, sample_weight=np.ones(len(Y))
        )
    with sklearn.config_context(enable_metadata_routing=True):
        asked = CalibratedModel(GaussianNB().set_fit_request(sample_weight=True), "temperature")
        assert np.array_equal(
            asked.fit(X[SEEN], Y[SEEN], sample_weight=weight).estimator_.class_prior_, weighted
        )


def test_refused_input() -> None:
    def fit(*given: Any, y: Any = Y, **options: Any) -> None:
        CalibratedModel(*given, **options).fit(X[: len(y)], y)

    with pytest.raises(ParameterError, match="there is no method 'smrt'; did you mean 'smart'"):
        fit(GaussianNB(), "smrt")
    with pytest.raises(ParameterError, match="auto has no parameter 'stps'"):
        fit(GaussianNB(), params={"stps": 3})
    with pytest.raises(ValueError, match="set the fields of the recipe"):
        fit(GaussianNB(), get_method("temperature")(), params={"objective": "mse"})
    with pytest.raises(ValueError, match="cv=5 needs at least 5 rows of every class"):
        fit(GaussianNB(), y=np.repeat([0, 1, 2], [10, 10, 2]))
    four = np.arange(len(Y)) % 4
    with pytest.raises(ValueError, match="decision_function_shape='ovr'"):
        fit(SVC(decision_function_shape="ovo"), "temperature", y=four)
    with pytest.raises(TypeError, match="StandardScaler must have one of decision_function"):
        fit(StandardScaler(), "temperature")


def test_maps_warn_through_the_model() -> None:
    apart = np.where(Y[:200] == 0, -5.0, 5.0)[:, np.newaxis]
    with pytest.warns(CalibrationWarning):
        CalibratedModel(GaussianNB(), "temperature").fit(apart + X[:200, :1] * 0.01, Y[:200] == 0)


def test_without_scikit_learn() -> None:
    code = "import sys; sys.modules['sklearn'] = None; import calibrd.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "needs scikit-learn 1.6 or newer: pip install 'calibrd[sklearn]'" in done.stderr
