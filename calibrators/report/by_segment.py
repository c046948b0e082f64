"""Calibration by segment in a report, worst segments first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrators.metrics import NoiseFloor, TopLabel, noise_floor
from calibrators.report.json_form import rounded
from calibrators.report.measurement import FLOOR_DRAWS
from calibrators.segments import Segments

MAX_REPORTED = 100


@dataclass(frozen=True)
class SegmentSide:
    """One side of a segment: accuracy, mean confidence, ECE (equal width) and its noise floor."""

    accuracy: float
    confidence: float
    ece: float
    noise_floor: NoiseFloor

    @property
    def excess(self) -> float:
        """The ECE minus the 95 % quantile of its noise floor.

        The floor's mean is not a suitable reference, because the ECE of a segment with one row is
        never near it.
        """
        return self.ece - self.noise_floor.quantile95


@dataclass(frozen=True)
class SegmentRow:
    """A segment: its name, its number of judged rows, and both sides."""

    name: str
    rows: int
    after: SegmentSide
    before: SegmentSide | None


def by_segment(
    segments: Segments, after: TopLabel, before: TopLabel | None, options: dict[str, Any]
) -> tuple[SegmentRow, ...]:
    """Return up to 100 segments, those with the most rows, sorted from worst to best.

    The worst segment is the one whose ECE on the after side is farthest above the 95 % quantile of
    its noise floor. ``options`` must include bins and seed.

    >>> top = TopLabel([0.9, 0.9, 0.6, 0.6], [False, False, True, False])
    >>> segments = Segments.of(["web", "web", "app", "app"])
    >>> found = by_segment(segments, top, None, {"bins": 15, "seed": 0})
    >>> [(row.name, row.rows, row.after.accuracy, row.after.ece) for row in found]
    [('web', 2, 0.0, 0.9), ('app', 2, 0.5, 0.1)]
    """
    largest = np.argsort(-segments.counts, kind="stable")[:MAX_REPORTED]
    table = []
    for place in largest:
        rows = segments.rows(place)
        table.append(
            SegmentRow(
                name=segments.names[place],
                rows=len(rows),
                after=_side(after, rows, options),
                before=None if before is None else _side(before, rows, options),
            )
        )
    return tuple(sorted(table, key=lambda row: -row.after.excess))


def _side(top: TopLabel, rows: Any, options: dict[str, Any]) -> SegmentSide:
    part = TopLabel.trusted(top.confidence[rows], top.correct[rows])
    floor = noise_floor(
        part.confidence, bins=options["bins"], draws=FLOOR_DRAWS, seed=options["seed"]
    )
    return SegmentSide(
        accuracy=rounded(part.accuracy),
        confidence=rounded(part.confidence.mean()),
        ece=rounded(part.equal_width(options["bins"]).ece()),
        noise_floor=NoiseFloor(rounded(floor.mean), rounded(floor.quantile95)),
    )
