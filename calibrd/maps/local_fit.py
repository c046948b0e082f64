"""Fit maps locally, for logits that must not leave this machine; fingerprint models."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrators import CalibrationSet, FitError, fit_and_judge
from calibrators.data import Kind
from calibrators.fitting.evaluation import TICKS, Judged
from calibrators.registry import DEFAULT_METHOD, make_recipe
from calibrd.io.calibration_sets import checked_set
from calibrd.progress import ProgressBar

BAR = "{desc}: {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}{postfix}]"


def fit_local(
    logits: Any,
    labels: Any,
    *,
    method: str = DEFAULT_METHOD,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    kind: Kind = "logits",
    segments: Any = None,
    features: Any = None,
    head: Any = None,
    evaluation: CalibrationSet | tuple[Any, ...] | None = None,
    held_out: float | None = None,
    device: str = "cpu",
    progress: bool = True,
) -> Judged:
    """Fit and judge a map locally, as the service does; return ``(map, report)``.

    ``client.register(name, *fitted)`` sends only the map and the report to the service. ``kind``
    states whether the values are "logits" or "probabilities". For methods that need them,
    ``segments`` holds the segment of each row, ``features`` the input to the model's last layer,
    and ``head`` that layer's ``(weight, bias)``. Fits on a ``device`` other than "cpu" need torch
    (``pip install 'calibrd[train]'``).

    The map is judged on ``evaluation``: ``(logits, labels)``, ``(logits, labels, segments)`` or
    ``(logits, labels, segments, features)``. Alternatively, ``held_out`` is the share of the rows
    to hold out for judging; for the default, see ``calibrators.fit_and_judge``.

    >>> fitted = fit_local([[3.0, 0.0]] * 80 + [[0.0, 3.0]] * 80, [0] * 60 + [1] * 80 + [0] * 20,
    ...                    method="temperature", progress=False)
    >>> round(fitted.map.temperature, 1), fitted.report.n
    (2.7, 160)
    """
    recipe = make_recipe(method, params or {}, seed=seed)
    data = checked_set(logits, labels, kind, segments, features, head)
    if recipe.method_needing_segments and data.segments is None:
        raise FitError(
            "missing_segments",
            f"the method {recipe.method_needing_segments!r} needs the segment of each row: "
            "pass segments=",
        )
    if evaluation is not None and not isinstance(evaluation, CalibrationSet):
        values, truth, *names = evaluation
        evaluation = checked_set(values, truth, kind, *names)
    with ProgressBar(TICKS, f"fit {method}", shown=progress, bar_format=BAR) as bar:

        def step(step: int, total: int, loss: float | None) -> None:
            bar.reach(step, **({} if loss is None else {"loss": f"{loss:.4f}"}))

        return fit_and_judge(
            recipe,
            data,
            evaluation=evaluation,
            held_out=held_out,
            seed=seed,
            device=device,
            progress=step,
        )


def fingerprint(model: str | Path | bytes | bytearray | memoryview) -> str:
    """Return a fingerprint that ties a map to a model: the hash of the model's file or bytes.

    Pass it as ``model=`` to ``fit``, ``register``, ``load`` and ``predict``. Files are read in
    pieces. For a module in memory, use ``calibrd.torch.fingerprint``.

    >>> fingerprint(b"weights")[:18]
    'sha256:9a129038d9a'
    """
    if isinstance(model, str | Path):
        with Path(model).open("rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    return f"sha256:{hashlib.sha256(model).hexdigest()}"
