"""ProCal: confidence corrected for each row's proximity to the fit rows in feature space."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from calibrators.base import Calibrator
from calibrators.data import CalibrationSet
from calibrators.errors import ParameterError
from calibrators.fitting.context import FitContext
from calibrators.methods._after_temperature import fallback_reason
from calibrators.methods._feature_map import FeatureMap
from calibrators.methods._proximity import BLOCK_NUMBERS, proximities, unit_rows
from calibrators.methods._top_label import (
    AHEAD,
    confidence_of,
    log_odds_of,
    log_sum,
    top_label,
)
from calibrators.methods.temperature import (
    TemperatureMap,
    TemperatureScaling,
    check_temperature,
)
from calibrators.numerics.parallel import Floats, row_blocks

Form = Literal["density_ratio", "bin_mean_shift"]

NODES = 129
KERNEL_ROWS = 1 << 13
LEAST_BANDWIDTH = 1e-3
LEAST_DENSITY = 1e-10
MOST_NUMBERS = 12_000_000  # of references, 48 MB
LARGEST_ODDS = 700.0
MOST_BINS, MOST_NEIGHBOURS = 1000, 1000


@dataclass(frozen=True, eq=False, kw_only=True)
class ProCalMap(FeatureMap):
    """A new confidence of the predicted class from its old confidence and the row's proximity.

    ``references`` (m, d) are features of fit rows as unit vectors. In the form "density_ratio",
    ``table`` (r, c) holds log odds at the nodes ``proximity_edges`` (r,) and ``confidence_edges``
    (1, c), between which they are interpolated. In the form "bin_mean_shift", ``proximity_edges``
    are the inner edges of the proximity bins. Row i of ``confidence_edges`` holds the inner edges
    of the confidence bins within proximity bin i, and row i of ``table`` their shifts.
    """

    method = "procal"
    complexity = 125
    keeps_class = True

    base_temperature: float
    neighbours: int
    form: str
    references: Floats
    proximity_edges: Floats
    confidence_edges: Floats
    table: Floats

    def _check_arrays(self) -> None:
        check_temperature(self.base_temperature)
        inner = 0 if self.form == "density_ratio" else 1
        rows, columns = self.table.shape if self.table.ndim == 2 else (0, 0)
        shapes = (self.proximity_edges.shape, self.confidence_edges.shape)
        if (
            min(rows, columns) < 2 - inner
            or shapes != ((rows - inner,), (rows if inner else 1, columns - inner))
            or self.form not in ("density_ratio", "bin_mean_shift")
            or not 1 <= self.neighbours <= MOST_NEIGHBOURS
            or self.references.ndim != 2
            or not self.references.size
        ):
            raise ParameterError(
                "bad_parameter",
                "the shapes of table, proximity_edges and confidence_edges must match the form, "
                f"got form={self.form!r}, neighbours={self.neighbours} and shapes "
                f"{self.table.shape}, {shapes[0]} and {shapes[1]}",
            )
        if rows > MOST_BINS or columns > MOST_BINS:
            raise ParameterError(
                "bad_parameter",
                f"the table may have at most {MOST_BINS:,} rows and columns, "
                f"got {rows:,} x {columns:,}",
            )
        with np.errstate(over="ignore"):
            longest = float(np.linalg.norm(self.references, axis=1).max())
        if (np.diff(self.confidence_edges) < 0).any() or (np.diff(self.proximity_edges) < 0).any():
            raise ParameterError("bad_parameter", "edges must be sorted in increasing order")
        if not longest < 1 + 1e-3:
            raise ParameterError(
                "bad_parameter",
                f"the rows of references must be unit vectors, got one of length {longest:.3g}",
            )

    @property
    def feature_count(self) -> int:
        """Number of features per row."""
        return int(self.references.shape[1])

    @property
    def row_cost(self) -> int:
        """Approximate number of values computed per row in addition to its logits."""
        searched = len(self.references) + self.references.size // 8
        return searched + 4 * self.neighbours * self.feature_count

    def proximity(self, features: Floats) -> Floats:
        """Return ``exp(-d)`` (n,), where d is the mean distance to a row's nearest references."""
        return proximities(features, self.references, self.neighbours)

    def _transform_features(self, logits: Floats, features: Floats) -> Floats:
        out = np.empty(logits.shape, logits.dtype)
        proximity = self.proximity(features)
        for rows in row_blocks(*logits.shape):
            self._write(logits[rows], proximity[rows], out[rows])
        return out

    def _write(self, block: Floats, proximity: Floats, target: Floats) -> None:
        """Write the new logits of a block, with the top one at 0 and the others shifted."""
        np.subtract(block, block.max(axis=1, keepdims=True), out=target)
        target *= target.dtype.type(1 / self.base_temperature)
        top = block.argmax(axis=1)[:, np.newaxis]
        np.put_along_axis(target, top, -np.inf, axis=1)
        second = target.max(axis=1)
        log_odds = -log_sum(target, second)
        alone = np.isinf(log_odds)
        log_odds[alone] = 0
        shift = log_odds - self.recalibrated(log_odds, proximity)
        limit = np.maximum(-np.where(alone, 0, second) - AHEAD, 0)
        shift = np.where(alone, 0, np.minimum(shift, limit))
        target += shift[:, np.newaxis].astype(target.dtype)
        np.put_along_axis(target, top, 0, axis=1)

    def recalibrated(self, log_odds: Floats, proximity: Floats) -> Floats:
        """Return the new log odds (n,) of the top label, given its log odds and the proximity."""
        confidence = confidence_of(log_odds)
        if self.form == "density_ratio":
            found = interpolated(
                self.table, self.proximity_edges, self.confidence_edges[0], proximity, confidence
            )
        else:
            outer = np.searchsorted(self.proximity_edges, proximity, side="right")
            inner = np.empty(len(outer), np.intp)
            for place in np.unique(outer):
                own = outer == place
                edges = self.confidence_edges[place]
                inner[own] = np.searchsorted(edges, confidence[own], side="right")
            shift = self.table[outer, inner]
            moved = np.where(shift == 0, confidence, np.clip(confidence + shift, 1e-12, 1 - 1e-12))
            found = np.where(shift == 0, log_odds, log_odds_of(moved))
        return np.asarray(np.clip(found, -LARGEST_ODDS, LARGEST_ODDS))


def interpolated(table: Floats, rows: Floats, columns: Floats, y: Floats, x: Floats) -> Floats:
    """Interpolate a table bilinearly at points (y, x); beyond its edges, use the edge values."""
    place, share = _nodes(rows, y)
    other, part = _nodes(columns, x)
    low = table[place, other] * (1 - part) + table[place, other + 1] * part
    high = table[place + 1, other] * (1 - part) + table[place + 1, other + 1] * part
    return np.asarray(low * (1 - share) + high * share)


def _nodes(nodes: Floats, at: Floats) -> tuple[Any, Floats]:
    """Return the index of the node below each point, and the fraction of the way to the next."""
    place = np.clip(np.searchsorted(nodes, at, side="right") - 1, 0, len(nodes) - 2)
    width = nodes[place + 1] - nodes[place]
    share = (at - nodes[place]) / np.where(width > 0, width, 1)
    return place, np.clip(share, 0, 1)


@dataclass(frozen=True)
class ProCal(Calibrator):
    """Estimate the probability of a correct prediction from its confidence c and proximity D.

    The method needs the features h of each row. ``D = exp(-mean of |h - h_i|)``, where the mean is
    over the ``neighbours`` fit rows with the nearest features, all scaled to unit length; a fit row
    is not its own neighbour. Models are often overconfident on unusual input, where D is small. c
    is the confidence after the exact temperature of temperature scaling, or before it with
    ``scaled=False``.

    With ``form="density_ratio"``,
    ``P(correct | c, D) = n1 f1(c, D) / (n1 f1(c, D) + n0 f0(c, D))``. f1 and f0 are Gaussian kernel
    density estimates from the n1 correct and n0 wrong rows, with bandwidths 1.06 s n^(-1/6) for a
    standard deviation s, as in the released code. The probability is tabulated at 129 x 129 nodes
    within the range of the fit rows. Where both densities vanish, it is n1 / (n1 + n0).

    With ``form="bin_mean_shift"``, rows are divided into ``proximity_bins`` equal-mass bins, and
    each of these into ``confidence_bins`` equal-mass bins. c is shifted by ``shrinkage`` times the
    difference between the accuracy and the mean confidence of its bin. (The released code fits
    another method within each proximity bin instead.)

    Only the confidence of the predicted class changes: the other classes keep their proportions
    and, unlike in the paper, the predicted class keeps the largest probability. The map holds the
    features of at most ``references`` fit rows, chosen with ``seed``, or of fewer rows if there are
    more than 1,200 features (12 million numbers in all). Each new row is compared with all of them.
    The map is temperature scaling if that ends at its bound or finds flat logits, or if the
    predictions of all fit rows are correct or all are wrong.

    Xiong, Deng, Koh, Wu, Li, Xu, Hooi: Proximity-informed calibration for deep neural networks.
    NeurIPS 2023.

    >>> rng = np.random.default_rng(0)
    >>> h = np.concatenate([np.full((2000, 8), 1.0), rng.normal(size=(2000, 8)) * 5])
    >>> h += 0.1 * rng.normal(size=h.shape)                      # half of the rows are unusual
    >>> z = rng.normal(size=(4000, 3)) * 2
    >>> y = (z / np.repeat([1, 4], 2000)[:, None] + rng.gumbel(size=z.shape)).argmax(axis=1)
    >>> fitted = ProCal().fit(CalibrationSet(z, y, features=h))
    >>> fitted.apply([[3.0, 0, 0]] * 2, features=[[1.0] * 8, [5.0, -5] * 4])[:, 0].round(1).tolist()
    [0.9, 0.5]
    """

    name = "procal"
    summary = (
        "the top label's confidence, corrected for the row's proximity to the fit rows in feature "
        "space"
    )
    reference = "Xiong et al., NeurIPS 2023"
    cost = "temperature scaling and the distances from all rows to up to 10,000 of them"
    needs_features = True
    copies = 0.5
    numbers_a_row = 12.0

    form: Form = "density_ratio"
    scaled: bool = True
    neighbours: Annotated[int, Ge(1), Le(MOST_NEIGHBOURS)] = 10
    references: Annotated[int, Ge(2), Le(1_000_000)] = 10_000
    proximity_bins: Annotated[int, Ge(1), Le(100)] = 5
    confidence_bins: Annotated[int, Ge(1), Le(MOST_BINS)] = 10
    shrinkage: Annotated[float, Gt(0), Le(1)] = 1.0
    seed: Annotated[int, Ge(0), Le(2**32 - 1)] = 0

    def feature_bytes(self, n: int, d: int) -> int:
        """Estimate the memory for two copies of the references and for blocks of features."""
        kept = min(n, self.references, max(2, MOST_NUMBERS // d))
        return 4 * 2 * kept * d + 8 * 2 * min(BLOCK_NUMBERS, n * max(kept, self.neighbours * d))

    def _fit(self, data: CalibrationSet, context: FitContext) -> ProCalMap:
        assert data.features is not None  # noqa: S101
        base = TemperatureScaling().fit_in(data, context.without_progress())
        assert isinstance(base, TemperatureMap)  # noqa: S101
        reason = fallback_reason(base)
        if not self.scaled and reason is None:
            base = TemperatureMap(k=data.k, kind=data.kind, temperature=1.0)
        context.step(1, 3)
        chosen = self._chosen(data.n, data.features.width)
        references = unit_rows(data.features.values[chosen])
        log_odds, correct = top_label(data, base)
        finite = np.isfinite(log_odds)
        hits = correct[finite].astype(bool)
        if reason is None and (hits.all() or not hits.any()):
            reason = "all predictions are correct, or all are wrong"
        fields: dict[str, Any] = _unchanged()
        if reason is None:
            own = np.full(data.n, -1)
            own[chosen] = np.arange(len(chosen))
            values = data.features.values
            proximity = proximities(values, references, self.neighbours, own)[finite]
            context.step(2, 3)
            confidence = confidence_of(log_odds[finite])
            if self.form == "density_ratio":
                fields = density_ratio(confidence, proximity, hits)
            else:
                fields = self._shifts(confidence, proximity, hits)
        context.step(3, 3)
        return ProCalMap(
            k=data.k,
            kind=data.kind,
            base_temperature=base.temperature,
            neighbours=self.neighbours,
            references=references,
            fit_info={"references": len(references), "not_fitted": reason},
            **fields,
        )

    def _chosen(self, n: int, d: int) -> Any:
        """Return the indices of the rows that serve as references, in ascending order."""
        most = min(self.references, max(2, MOST_NUMBERS // d))
        if n <= most:
            return np.arange(n)
        return np.sort(np.random.default_rng(self.seed).choice(n, most, replace=False))

    def _shifts(self, confidence: Floats, proximity: Floats, hits: Floats) -> dict[str, Any]:
        """Return the fields of a map with equal-mass bins and their shifts."""
        outer = _inner_edges(proximity, self.proximity_bins)
        group = np.searchsorted(outer, proximity, side="right")
        edges = np.zeros((self.proximity_bins, self.confidence_bins - 1))
        table = np.zeros((self.proximity_bins, self.confidence_bins))
        for place in range(self.proximity_bins):
            own, right = confidence[group == place], hits[group == place]
            if not own.size:
                continue
            edges[place] = _inner_edges(own, self.confidence_bins)
            bins = (own[:, np.newaxis] >= edges[place]).sum(axis=1)
            gaps = np.bincount(bins, right - own, self.confidence_bins)
            counts = np.bincount(bins, minlength=self.confidence_bins)
            table[place] = self.shrinkage * gaps / np.maximum(counts, 1)
        return {
            "form": "bin_mean_shift",
            "proximity_edges": outer,
            "confidence_edges": edges,
            "table": table,
        }


def density_ratio(confidence: Floats, proximity: Floats, hits: Floats) -> dict[str, Any]:
    """Return the fields of a map with log odds at nodes of confidence and proximity."""
    nodes = [_range_nodes(confidence), _range_nodes(proximity)]
    right = _density(confidence[hits], proximity[hits], *nodes)
    wrong = _density(confidence[~hits], proximity[~hits], *nodes)
    prior = math.log(hits.sum() / (~hits).sum())
    log_odds = np.log(np.maximum(right, LEAST_DENSITY) / np.maximum(wrong, LEAST_DENSITY))
    return {
        "form": "density_ratio",
        "proximity_edges": nodes[1],
        "confidence_edges": nodes[0][np.newaxis],
        "table": log_odds + prior,
    }


def _density(x: Floats, y: Floats, x_nodes: Floats, y_nodes: Floats) -> Floats:
    """Return a Gaussian kernel density estimate at all pairs of nodes, (y nodes, x nodes)."""
    scale = 1.06 * len(x) ** (-1 / 6)
    widths = [max(LEAST_BANDWIDTH, scale * float(one.std())) for one in (x, y)]
    total = np.zeros((len(y_nodes), len(x_nodes)))
    with np.errstate(under="ignore"):
        for start in range(0, len(x), KERNEL_ROWS):
            part = slice(start, start + KERNEL_ROWS)
            pairs = ((y_nodes, y, widths[1]), (x_nodes, x, widths[0]))
            kernels = (
                np.exp(-0.5 * ((at[:, np.newaxis] - given[part]) / width) ** 2)
                for at, given, width in pairs
            )
            of_y, of_x = kernels
            total += of_y @ of_x.T
    return np.asarray(total / (2 * math.pi * widths[0] * widths[1] * len(x)))


def _range_nodes(values: Floats) -> Floats:
    return np.linspace(float(values.min()), float(values.max()), NODES)


def _inner_edges(values: Floats, bins: int) -> Floats:
    return np.asarray(np.quantile(values, np.arange(1, bins) / bins))


def _unchanged() -> dict[str, Any]:
    """Return the fields of a map that keeps the confidence of temperature scaling."""
    return {
        "form": "bin_mean_shift",
        "proximity_edges": np.zeros(0),
        "confidence_edges": np.zeros((1, 0)),
        "table": np.zeros((1, 1)),
    }
