"""Valid calls that a generator would not find from the OpenAPI document alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from calibrators import all_methods
from helpers.workspace_contents import CLASSES, Things, dataset_body, fitted_elsewhere
from service.datasets.formats import npy
from service.runs.schemas import StatisticsIn

JSON = "application/json"
WIDTHS = [CLASSES, CLASSES, CLASSES, CLASSES - 1, 2, 1]


class Real(NamedTuple):
    """A body or a query that is usually valid."""

    media_type: str = ""
    body: Any = None
    query: Mapping[str, Any] = MappingProxyType({})


def _rows() -> st.SearchStrategy[list[list[float]]]:
    number = st.floats(-1e6, 1e6, width=32)
    return st.sampled_from(WIDTHS).flatmap(
        lambda width: st.lists(
            st.lists(number, min_size=width, max_size=width), min_size=1, max_size=4
        )
    )


def _predictions(_: Things) -> st.SearchStrategy[Real]:
    dtypes = st.sampled_from(["<f2", "<f4", ">f8", "<i4"])
    query = st.sampled_from([{}, {"top": 2}, {"dtype": "float64"}, {"model": "sha256:0f1e"}])
    return st.one_of(
        st.builds(lambda rows, query: Real(JSON, rows, query), _rows(), query),
        st.builds(lambda rows: Real(JSON, {"logits": rows, "labels": [0] * len(rows)}), _rows()),
        st.builds(
            lambda rows, dtype: Real("application/x-npy", _npy(rows, dtype)), _rows(), dtypes
        ),
    )


def _npy(rows: list[list[float]], dtype: str) -> bytes:
    return npy.encode(np.array(rows).clip(-6e4, 6e4).astype(dtype))


def _row_in_query(_: Things) -> st.SearchStrategy[Real]:
    return _rows().map(lambda rows: Real(query={"logits": ",".join(map(str, rows[0]))}))


def _tensors(_: Things) -> st.SearchStrategy[Real]:
    def tensor(rows: list[list[float]], datatype: str) -> Real:
        shape = [len(rows), len(rows[0])]
        one = {"name": "logits", "datatype": datatype, "shape": shape, "data": rows}
        return Real(JSON, {"inputs": [one]})

    return st.builds(tensor, _rows(), st.sampled_from(["FP32", "FP64"]))


def _fits(things: Things) -> st.SearchStrategy[Real]:
    methods = st.sampled_from(sorted(all_methods()))
    return st.builds(
        lambda method, seed: Real(
            JSON, {"dataset": things.dataset, "method": method, "seed": seed}
        ),
        methods,
        st.integers(0, 2**32 - 1),
    )


def _versions(_: Things) -> st.SearchStrategy[Real]:
    notes = st.text(max_size=20).filter(lambda text: "\0" not in text)
    return notes.map(lambda text: Real(JSON, {**fitted_elsewhere(), "description": text}))


def _comparisons(_: Things) -> st.SearchStrategy[Real]:
    numbers = st.integers(1, 3)
    return st.builds(lambda a, b: Real(query={"first": a, "second": b}), numbers, numbers)


def _runs(_: Things) -> st.SearchStrategy[Real]:
    facts = st.fixed_dictionaries(
        {"name": st.sampled_from(["one", "two", "resnet-cifar10"])},
        optional={
            "kind": st.sampled_from(["adafocal", "monitor"]),
            "decides": st.sampled_from(["trainer", "service"]),
            "world_size": st.integers(1, 3),
            "from_step": st.integers(0, 2),
            "session": st.sampled_from(["a", "b"]),
        },
    )
    return facts.map(lambda body: Real(JSON, body))


def _statistics(_: Things) -> st.SearchStrategy[Real]:
    example = StatisticsIn.example()
    changes = st.sampled_from([{}, {"state": None}, {"rank": 1}, {"statistics": "Q0JTMQ=="}])
    return changes.map(lambda change: Real(JSON, {**example, **change}))


def _run_notes(_: Things) -> st.SearchStrategy[Real]:
    notes = {"tags": st.just({"a": "b"}), "archived": st.booleans(), "description": st.just("x")}
    return st.fixed_dictionaries({}, optional=notes).map(lambda body: Real(JSON, body))


def _files(media_type: str) -> Callable[[Things], st.SearchStrategy[Real]]:
    return lambda _: st.just(Real(media_type, dataset_body()))


REAL: dict[str, Callable[[Things], st.SearchStrategy[Real]]] = {
    "POST /v1/datasets": _files("application/x-npz"),
    "PUT /v1/datasets/{id}/parts/{number}": _files("application/octet-stream"),
    "POST /v1/calibrators/{name}/fits": _fits,
    "POST /v1/calibrators/{name}/versions": _versions,
    "GET /v1/calibrators/{name}/compare": _comparisons,
    "POST /v1/calibrators/{name}@{ref}/predict": _predictions,
    "GET /v1/calibrators/{name}@{ref}/predict": _row_in_query,
    "POST /v1/runs": _runs,
    "PATCH /v1/runs/{run}": _run_notes,
    "POST /v1/runs/{run}/steps/{step}/stats": _statistics,
    "POST /v2/models/{name}/infer": _tensors,
    "POST /v2/models/{name}/versions/{version}/infer": _tensors,
}
