"""An example of every body and answer about training runs, by the name of its schema."""

from __future__ import annotations

from typing import Any

from service.http.openapi_examples import AFTER, BEFORE, WHO, page

RUN_NAME = "resnet-cifar10"
SESSION_ID = "job-1207"
# four rows of three classes
STATISTICS = (
    "Q0JTMXicC2IAAUYoYmRA4ULBVgaGfgaGkwwZDCwTGQgDBQYGOQYGC4YABoYkIpQDrTnNwODOYMLAcIUI5ZIMDCoMDEYMVgwM"
    "LEQoH7SgMUJn+/GHT50LxeUVQCENAPtFDKg="
)
SETTINGS = {
    "bins": 2,
    "rate": 1.0,
    "gamma_max": 20.0,
    "gamma_min": -2.0,
    "switch_at": 0.2,
    "rule": "adafocal",
}
STATE = {
    "settings": SETTINGS,
    "step": 1,
    "edges": [0.0, 0.7855968947392908, 1.0],
    "gammas": [0.5961849545952088, 1.415552602564902],
    "accuracy": [1.0, 0.5],
}
BEGIN = {
    "settings": SETTINGS,
    "step": 0,
    "edges": [0.0, 0.5, 1.0],
    "gammas": [1.0, 1.0],
    "accuracy": [0.25, 0.75],
}
METRICS = {
    "rows": 4,
    "accuracy": 0.75,
    "confidence": 0.665,
    "ece": 0.54,
    "ada_ece": 0.54,
    "nll": 1.207,
}
SESSION = {
    "id": SESSION_ID,
    "number": 1,
    "base_step": 0,
    "world_size": 1,
    "decides": "trainer",
    "merge_timeout": 60.0,
    "begun_at": BEFORE,
    "created_by": WHO,
    "created_at": BEFORE,
}
RUN = {
    "name": RUN_NAME,
    "kind": "adafocal",
    "settings": SETTINGS,
    "step": 1,
    "metrics": METRICS,
    "tags": {"team": "vision"},
    "description": "learning rate 0.1",
    "archived": False,
    "created_by": WHO,
    "created_at": BEFORE,
    "updated_at": AFTER,
}
NONE = [None] * 5
STEP = {
    "step": 1,
    "session": SESSION_ID,
    "decided_at": AFTER,
    "ranks": [0],
    "world_size": 1,
    "partial": False,
    "verified": True,
    "metrics": METRICS,
    "bins": {
        "edges": STATE["edges"],
        "count": [2.0, 2.0],
        "confidence": [0.483, 0.848],
        "accuracy": [1.0, 0.5],
    },
    "reliability": {
        "count": [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0],
        "confidence": [*NONE, 0.391, None, None, 0.575, None, None, 0.786, None, 0.909, None],
        "accuracy": [*NONE, 1.0, None, None, 1.0, None, None, 1.0, None, 0.0, None],
    },
    "gammas": STATE["gammas"],
    "switched": [],
}

RUN_EXAMPLES: dict[str, Any] = {
    "OpenRunIn": {"name": RUN_NAME, "settings": SETTINGS, "session": SESSION_ID},
    "OpenedRunOut": {**RUN, "step": 0, "metrics": None, "session": SESSION, "state": BEGIN},
    "Page_RunOut_": page(RUN),
    "Page_RunStepOut_": page(STEP),
    "RunDetailOut": {**RUN, "sessions": [SESSION]},
    "RunNotesIn": {"tags": {"team": "vision"}, "archived": True},
    "RunStateOut": {
        "run": RUN_NAME,
        "session": SESSION_ID,
        "step": 1,
        "state": STATE,
        "metrics": METRICS,
        "partial": False,
        "verified": True,
    },
    "StatisticsIn": {"session": SESSION_ID, "statistics": STATISTICS, "state": STATE},
    "StepDecisionOut": {
        "step": 1,
        "session": SESSION_ID,
        "status": "decided",
        "ranks": [0],
        "late": False,
        "state": STATE,
    },
}
