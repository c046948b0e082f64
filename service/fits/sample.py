"""A first fit on the bundled sample, for users who have no data yet."""

from __future__ import annotations

import io
from typing import Literal

import numpy as np

from calibrators.sample import TITLE, sample
from service.access.permissions import Principal
from service.datasets.service import Datasets, Retention
from service.datasets.spool import Spool
from service.fits import service as fits
from service.fits.service import FitRequest, FitSpec, MethodSpec
from service.storage.database import Database
from service.storage.records import Fit

CALIBRATOR = "sample"
METHODS = ("temperature", "smart")
NPZ = "application/x-npz"


def fit_sample(
    database: Database,
    datasets: Datasets,
    principal: Principal,
    *,
    spool: Spool,
    keeping: Retention,
    most_open: int,
) -> Fit:
    """Submit a fit on one part of the sample, and judge it on the other."""

    def add(part: Literal["cal", "test"]) -> str:
        with spool.body(principal.workspace) as arrived:
            arrived.write(_npz(part))
            return datasets.add(principal, arrived, NPZ, None, keeping).dataset.id

    spec = FitSpec([MethodSpec(one) for one in METHODS], description=f"The sample: {TITLE}")
    dataset, evaluation = add("cal"), add("test")
    request = FitRequest(CALIBRATOR, spec, dataset, evaluation)
    request.check()
    with database.write() as store:
        return fits.submit(store, principal, request, dataset=dataset, most_open=most_open)


def _npz(part: Literal["cal", "test"]) -> bytes:
    data, file = sample(part), io.BytesIO()
    np.savez_compressed(file, logits=data.logits.astype(np.float32), labels=data.labels)
    return file.getvalue()
