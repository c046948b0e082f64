"""Calibrate a scikit-learn model, and register its map on the service.

    pip install 'calibrd[sklearn,train]'
    CALIBRD_URL=http://127.0.0.1:8000 python examples/sklearn_model.py

Naive Bayes assumes that pixels are independent, so it is far too confident.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import calibrd
from calibrd.sklearn import CalibratedModel

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)


def naive_bayes():
    """Return an ordinary scikit-learn model."""
    return make_pipeline(StandardScaler(), GaussianNB())


bare = naive_bayes().fit(X_train, y_train)
model = CalibratedModel(naive_bayes(), calibrator="smart").fit(X_train, y_train)

print("on test rows                bare   calibrated")
rows = {
    "accuracy": [one.score(X_test, y_test) for one in (bare, model)],
    "mean confidence": [one.predict_proba(X_test).max(axis=1).mean() for one in (bare, model)],
    "log loss": [log_loss(y_test, one.predict_proba(X_test)) for one in (bare, model)],
}
for name, (before, after) in rows.items():
    print(f"{name:<20} {before:>11.3f} {after:>12.3f}")

# judged on the training rows, each by an estimator and a map that were not fitted on it
print(f"\n{model.report_.summary()}")

# the logits stay here: only the map and its report are sent
with calibrd.Client() as client:
    version = client.register("digits-nb", model.map_, model.report_, tags={"from": "sklearn"})
    print(f"\nregistered as {version.reference}: {version.verdict}")
    outputs = bare.predict_log_proba(X_test).clip(np.log(np.finfo(float).eps))
    same = client.predict(version, outputs) - model.predict_proba(X_test)
    print(f"the service gives the same probabilities within {np.abs(same).max():.0e}")
