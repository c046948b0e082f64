"""Archives whose arrays have odd shapes are refused, or the map answers: nothing else happens."""

from __future__ import annotations

import hashlib
import json
import struct
import tracemalloc

import numpy as np
import pytest
from helpers.samples import draw, suited

from calibrators import CalibrationError, CalibrationMap, all_methods, archive
from calibrators.features import MAX_FEATURES
from calibrators.methods.grouping import GroupingMap
from calibrators.methods.procal import ProCalMap
from service.errors import Invalid
from service.registry.registration import _check_answers

SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (0, 0), (1, 1), (0, 7), (7, 0), (50, 50))
WIDE = 3_000_000


def forged(fitted: CalibrationMap, name: str, shape: tuple[int, ...]) -> bytes:
    """The archive of a map with one array of another shape."""
    data = archive.dump(fitted)
    header = {key: one for key, one in archive.describe(data).items() if key != "format"}
    del header["sha256"]
    arrays = dict.fromkeys(header["arrays"], b"")
    place = 44 + struct.unpack_from("<I", data, 40)[0]
    for other, one in sorted(header["arrays"].items()):
        size = int(np.prod(one["shape"], dtype=int)) * int(one["dtype"][-1])
        arrays[other] = data[place : place + size]
        place += size
    dtype = header["arrays"][name]["dtype"]
    arrays[name] = np.full(shape, 0.5).astype(dtype).tobytes()
    header["arrays"][name] = {"dtype": dtype, "shape": list(shape)}
    text = json.dumps(header).encode()
    body = struct.pack("<I", len(text)) + text + b"".join(arrays[one] for one in sorted(arrays))
    return data[:8] + hashlib.sha256(body).digest() + body


@pytest.mark.parametrize("method", sorted(all_methods()))
def test_arrays_of_any_shape_are_refused_or_work(method: str) -> None:
    parameters = {"steps": 20} if method == "smart" else {}
    recipe = all_methods()[method](**parameters)
    fitted = recipe.fit(suited(draw(600, 5), recipe))
    for name in archive.describe(archive.dump(fitted))["arrays"]:
        for shape in SHAPES:
            try:
                _check_answers(archive.load(forged(fitted, name, shape)))
            except (CalibrationError, Invalid):
                continue


def wide(method: str) -> bytes:
    """A map of millions of features."""
    made = all_methods()[method]()
    name = {"grouping": "weights", "procal": "references", "feature_clipping": "weight"}[method]
    fitted = made.fit(suited(draw(600, 2), made))
    rows = getattr(fitted, name).shape[0]
    return forged(fitted, name, (rows, WIDE // rows))


@pytest.mark.parametrize("method", ["feature_clipping", "grouping", "procal"])
def test_a_map_of_millions_of_features_is_refused_in_little_memory(method: str) -> None:
    data = wide(method)
    tracemalloc.start()
    try:
        with pytest.raises(CalibrationError, match=f"1 to {MAX_FEATURES:,} features|unit vectors"):
            _check_answers(archive.load(data))
        assert tracemalloc.get_traced_memory()[1] < 5 * len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "fitted",
    [
        lambda: ProCalMap(
            k=2,
            base_temperature=1.0,
            neighbours=1,
            form="bin_mean_shift",
            references=np.ones((1, 1), np.float32),
            proximity_edges=np.zeros(0),
            confidence_edges=np.linspace(0, 1, 999)[np.newaxis],
            table=np.zeros((1, 1000)),
        ),
        lambda: GroupingMap(k=2, weights=np.ones((200, 1)), temperatures=np.ones((100, 2))),
    ],
    ids=["procal", "grouping"],
)
def test_many_rows_of_a_large_map_take_little_memory(fitted) -> None:
    largest = fitted()
    logits, features = np.zeros((200_000, 2), np.float32), np.ones((200_000, 1), np.float32)
    tracemalloc.start()
    try:
        largest.apply(logits, features=features)
        assert tracemalloc.get_traced_memory()[1] < 60e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("partitions", [101, 1500])
def test_more_partitions_than_any_fit_makes_are_refused(partitions: int) -> None:
    with pytest.raises(CalibrationError, match="at most 100 partitions of 20 groups"):
        GroupingMap(k=2, weights=np.ones((partitions, 1)), temperatures=np.ones((partitions, 1)))
