"""Other solvers of the objective of vector scaling, matrix scaling and Dirichlet calibration.

Each gets our features and penalties, prepared in the form it needs, and returns W and b.
scikit-learn's LogisticRegression and netcal's LogisticCalibration are not included: the former
shrinks W towards 0 instead of I, and the latter has no penalty, so neither can find this minimum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Parameters = tuple[np.ndarray, np.ndarray]

GRADIENT = 1e-6
ITERATIONS = 2000


@dataclass(frozen=True)
class Problem:
    """Mean NLL of `softmax(W x + b)` plus penalties on squares; W is a vector if diagonal."""

    x: np.ndarray
    labels: np.ndarray
    diagonal: float
    intercept: float
    off_diagonal: float | None

    @property
    def k(self) -> int:
        """Number of classes."""
        return self.x.shape[1]

    @property
    def penalty(self) -> np.ndarray:
        """Return the penalty of every parameter, in the shape of `start`."""
        rows = 1 if self.off_diagonal is None else self.k
        weights = np.full((rows, self.k), self.off_diagonal or self.diagonal)
        if self.off_diagonal is not None:
            np.fill_diagonal(weights, self.diagonal)
        return np.vstack([weights, np.full(self.k, self.intercept)])

    @property
    def start(self) -> np.ndarray:
        """Return the starting point: W = I above b = 0."""
        weights = np.ones((1, self.k)) if self.off_diagonal is None else np.eye(self.k)
        return np.vstack([weights, np.zeros(self.k)])

    def parameters(self, point: np.ndarray) -> Parameters:
        """Return W (or its diagonal) and b at an offset from the starting point."""
        made = self.start + point.reshape(self.start.shape)
        return (made[0] if self.off_diagonal is None else made[:-1].T), made[-1]

    def objective(self, weights: np.ndarray, bias: np.ndarray) -> float:
        """Return the objective in float64, from its definition."""
        x = self.x.astype(np.float64)
        vector = weights.ndim == 1
        scores = (x * weights if vector else x @ weights.T) + bias
        scores -= scores.max(1, keepdims=True)
        losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(x)), self.labels]
        own = weights if vector else np.diag(weights)
        penalty = self.diagonal * ((own - 1) ** 2).sum() + self.intercept * (bias**2).sum()
        if self.off_diagonal is not None:
            penalty += self.off_diagonal * ((weights**2).sum() - (own**2).sum())
        return float(losses.mean() + penalty)


@dataclass(frozen=True)
class Solver:
    """A solver: `prepare(problem)` is not timed, `run(*prepared)` is."""

    name: str
    prepare: Callable[[Problem], tuple[Any, ...]]
    run: Callable[..., Parameters]


def in_type(dtype: Any) -> Callable[[Problem], tuple[Any, ...]]:
    """Return a preparation that converts the features to a type."""
    return lambda problem: (problem, problem.x.astype(dtype))


def in_tensors(dtype: Any) -> Callable[[Problem], tuple[Any, ...]]:
    """Return a preparation that converts the problem to tensors."""

    def prepare(problem: Problem) -> tuple[Any, ...]:
        import torch

        return problem, torch.from_numpy(problem.x.astype(dtype)), torch.from_numpy(problem.labels)

    return prepare


class Numpy:
    """Value, gradient and Hessian products in plain numpy, as one would write them for scipy."""

    def __init__(self, problem: Problem, x: np.ndarray) -> None:
        self.problem, self.x, self.n = problem, x, len(x)
        self.start, self.penalty = problem.start, problem.penalty
        self.rows = np.arange(self.n)

    def scores(self, parameters: np.ndarray) -> np.ndarray:
        """Return `W x + b` of each row."""
        own = parameters.astype(self.x.dtype)
        vector = self.problem.off_diagonal is None
        return (self.x * own[0] if vector else self.x @ own[:-1]) + own[-1]

    def moments(self, residuals: np.ndarray) -> np.ndarray:
        """Return the derivatives in the parameters, from those in the scores."""
        if self.problem.off_diagonal is None:
            weights = np.einsum("ij,ij->j", residuals, self.x)[None]
        else:
            weights = self.x.T @ residuals
        return np.vstack([weights, residuals.sum(0)]).astype(np.float64) / self.n

    def value(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the objective and its gradient."""
        point = flat.reshape(self.start.shape)
        p = self.scores(self.start + point)
        p -= p.max(1, keepdims=True)
        at_label = p[self.rows, self.problem.labels].astype(np.float64)
        np.exp(p, out=p)
        totals = p.sum(1, keepdims=True)
        p /= totals
        nll = float((np.log(totals[:, 0], dtype=np.float64) - at_label).mean())
        p[self.rows, self.problem.labels] -= 1
        gradient = self.moments(p) + 2 * self.penalty * point
        return nll + float((self.penalty * point**2).sum()), gradient.ravel()

    def curve(self, flat: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """Return the Hessian times a direction."""
        p = self.scores(self.start + flat.reshape(self.start.shape))
        p -= p.max(1, keepdims=True)
        np.exp(p, out=p)
        p /= p.sum(1, keepdims=True)
        along = direction.reshape(self.start.shape)
        change = self.scores(along)
        change -= np.vecdot(p, change)[:, None]
        return (self.moments(p * change) + 2 * self.penalty * along).ravel()


def scipy(method: str, **options: Any) -> Callable[..., Parameters]:
    """Return a solver that uses a method of scipy.optimize.minimize."""

    def run(problem: Problem, x: np.ndarray) -> Parameters:
        from scipy.optimize import minimize

        function = Numpy(problem, x)
        more = {"hessp": function.curve} if method == "Newton-CG" else {}
        zero = np.zeros(function.start.size)
        found = minimize(function.value, zero, jac=True, method=method, options=options, **more)
        return problem.parameters(found.x)

    return run


def torch_lbfgs(problem: Problem, x: Any, labels: Any) -> Parameters:
    """Minimise with autograd and torch.optim.LBFGS with its line search."""
    import torch

    start = torch.tensor(problem.start, dtype=x.dtype)
    penalty = torch.tensor(problem.penalty, dtype=x.dtype)
    point = torch.nn.Parameter(torch.zeros_like(start))
    optimizer = torch.optim.LBFGS(
        [point],
        max_iter=ITERATIONS,
        tolerance_grad=GRADIENT,
        tolerance_change=0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Any:
        optimizer.zero_grad()
        made = start + point
        scores = (x * made[0] if problem.off_diagonal is None else x @ made[:-1]) + made[-1]
        loss = torch.nn.functional.cross_entropy(scores, labels) + (penalty * point**2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return problem.parameters(point.detach().numpy().astype(np.float64))


def probmetrics_lbfgs(problem: Problem, x: Any, labels: Any) -> Parameters:
    """Run the internals of probmetrics' structured vector and matrix scaling."""
    from probmetrics.calibrators.logistic import SMSCalibrator, SVSCalibrator

    given = {"reg_intercept": problem.intercept, "reg_diagonal": problem.diagonal}
    if problem.off_diagonal is None:
        solver = SVSCalibrator(print_init_info=False)
        weights, bias = solver._fit_bfgs(x, labels, problem.k, **given)
        return weights.astype(np.float64), bias.astype(np.float64)
    given["reg_off_diagonal"] = problem.off_diagonal
    made = SMSCalibrator(print_init_info=False)._fit_bfgs(x, labels, problem.k, **given)
    return made[:, :-1].astype(np.float64), made[:, -1].astype(np.float64)


def saga_ready(problem: Problem) -> tuple[Any, ...]:
    """Compile the solver before its time is measured."""
    from probmetrics.saga import warm_up_matrix_scaling, warm_up_vector_scaling

    if problem.off_diagonal is None:
        warm_up_vector_scaling()
        return problem, problem.x
    warm_up_matrix_scaling()
    return problem, np.hstack([problem.x, np.ones((len(problem.x), 1), problem.x.dtype)])


def probmetrics_saga(problem: Problem, x: np.ndarray) -> Parameters:
    """Solve the problem with the SAGA solver of probmetrics."""
    from probmetrics.saga import fit_matrix_scaling, fit_vector_scaling

    given: dict[str, Any] = {
        "penalty": "ridge",
        "reg_intercept": problem.intercept,
        "reg_diagonal": problem.diagonal,
        "max_iter": 500,
        "tol": 1e-5,
    }
    if problem.off_diagonal is None:
        weights, bias = fit_vector_scaling(x, problem.labels, **given)
        return weights, bias
    given |= {"init_scaling": 1.0, "reg_off_diagonal": problem.off_diagonal}
    made = fit_matrix_scaling(x, problem.labels, **given)
    return made[:, :-1], made[:, -1]


def solvers() -> list[Solver]:
    """Return all solvers of this problem."""
    lbfgs = scipy("L-BFGS-B", maxiter=ITERATIONS, maxfun=ITERATIONS, ftol=0.0, gtol=GRADIENT)
    return [
        Solver("probmetrics L-BFGS", in_tensors(np.float32), probmetrics_lbfgs),
        Solver("probmetrics L-BFGS f64", in_tensors(np.float64), probmetrics_lbfgs),
        Solver("probmetrics SAGA", saga_ready, probmetrics_saga),
        Solver("scipy L-BFGS-B", in_type(np.float32), lbfgs),
        Solver("scipy L-BFGS-B f64", in_type(np.float64), lbfgs),
        Solver("scipy Newton-CG f64", in_type(np.float64), scipy("Newton-CG", xtol=1e-8)),
        Solver("torch LBFGS", in_tensors(np.float32), torch_lbfgs),
        Solver("torch LBFGS f64", in_tensors(np.float64), torch_lbfgs),
    ]
