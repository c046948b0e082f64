"""An example of every body and answer, by the name of its schema."""

from __future__ import annotations

from typing import Any

SHA256 = "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"
DATASET_ID = "ds_4f2c9a1be07d8c3355aa"
FIT_ID = "fit_0c1d6f2ab9e84d7710cc"
MODEL = "sha256:0f1e"
BEFORE, AFTER = "2026-01-05T10:00:00Z", "2026-01-05T10:00:03Z"
KEY_ID = "1f0c22ab94de"
WHO = f"ci (key {KEY_ID})"

DATASET = {
    "id": DATASET_ID,
    "status": "ready",
    "kind": "logits",
    "sha256": SHA256,
    "format": "npz",
    "bytes": 412_310,
    "rows": 10_000,
    "classes": 10,
    "segments": None,
    "delete_after_fit": False,
    "expires_at": None,
    "created_at": BEFORE,
}
FIT = {
    "id": FIT_ID,
    "calibrator": "fashion",
    "status": "succeeded",
    "methods": [{"method": "temperature", "params": {}}, {"method": "smart", "params": {}}],
    "dataset": DATASET_ID,
    "evaluation": None,
    "seed": 0,
    "held_out": None,
    "model": MODEL,
    "progress": None,
    "device": "cpu",
    "attempt": 1,
    "cancel_requested": False,
    "versions": [3, 4],
    "recommendation": {
        "version": 4,
        "reason": "smart has the lowest NLL (0.2441) of the 2 that lose neither accuracy nor "
        "ranking",
    },
    "error": None,
    "created_by": WHO,
    "created_at": BEFORE,
    "started_at": BEFORE,
    "finished_at": AFTER,
}
ALIAS = {"name": "production", "version": 3, "revision": 2, "moved_at": AFTER, "warning": None}
MOVE = {
    "revision": 2,
    "from_version": 2,
    "to_version": 3,
    "moved_by": WHO,
    "moved_at": AFTER,
    "reason": "lower ECE on last week's traffic",
    "forced": False,
    "rollback": False,
}
CALIBRATOR = {"name": "fashion", "latest": 3, "aliases": [ALIAS], "created_at": BEFORE}
VERSION = {
    "calibrator": "fashion",
    "number": 3,
    "method": "temperature",
    "params": {},
    "seed": 0,
    "kind": "logits",
    "classes": 10,
    "model": MODEL,
    "dataset_sha256": SHA256,
    "rows": 10_000,
    "verdict": "improved",
    "verdict_sentence": "calibration is better, and NLL, Brier score, accuracy and ranking are not "
    "worse",
    "fit": FIT_ID,
    "fit_info": {"rows": 10_000},
    "libraries": {"numpy": "2.2.0"},
    "map_sha256": SHA256,
    "map_bytes": 612,
    "has_onnx": True,
    "has_judged_rows": True,
    "tags": {"team": "vision"},
    "description": "on the test set of January",
    "created_by": WHO,
    "created_at": AFTER,
}
COMPARISON = {
    "calibrator": "fashion",
    "first": 2,
    "second": 3,
    "dataset": None,
    "rows": 2000,
    "verdict": "improved",
    "no_verdict": None,
    "report": {"verdict": "improved", "n": 2000},
}
KEY = {
    "id": KEY_ID,
    "name": "ci",
    "scopes": ["predict"],
    "created_at": BEFORE,
    "expires_at": None,
    "revoked_at": None,
    "last_used_at": None,
}
PART = {"number": 1, "bytes": 8_388_608, "sha256": SHA256}
PART_URL = {
    "number": 1,
    "url": f"https://store.example/calibrd/{DATASET_ID}/1?X-Amz-Signature=0f1e",
    "method": "PUT",
    "expires_at": AFTER,
}
METHOD = {
    "name": "temperature",
    "summary": "One number that divides all logits.",
    "reference": "Guo et al. 2017",
    "cost": "milliseconds",
    "keeps_class": True,
    "needs_segments": False,
    "parameters": {"type": "object", "properties": {}},
}
READY = {"status": "ok", "database": "ok", "blobs": "ok", "workers": "ok"}


def page(item: dict[str, Any]) -> dict[str, Any]:
    """A list of one item."""
    return {"items": [item], "next": None}


EXAMPLES: dict[str, Any] = {
    "AliasOut": ALIAS,
    "CalibratorOut": CALIBRATOR,
    "ComparisonOut": COMPARISON,
    "CommitIn": {"parts": 3, "sha256": SHA256},
    "DatasetOut": DATASET,
    "FitIn": {"dataset": DATASET_ID, "method": "smart"},
    "FitOut": FIT,
    "Health": {"status": "ok"},
    "KeyIn": {"name": "ci", "scopes": ["predict"], "days": 90},
    "KeyOut": KEY,
    "MethodOut": METHOD,
    "MoveIn": {"version": 3, "reason": MOVE["reason"]},
    "MoveOut": MOVE,
    "NewKeyOut": {"key": KEY, "token": "cal_<id>_<secret>"},
    "NotesIn": {"tags": {"team": "vision"}},
    "Page_CalibratorOut_": page(CALIBRATOR),
    "Page_DatasetOut_": page(DATASET),
    "Page_FitOut_": page(FIT),
    "Page_KeyOut_": page(KEY),
    "Page_MoveOut_": page(MOVE),
    "Page_VersionOut_": page(VERSION),
    "PartIn": PART,
    "PartsIn": {"parts": [PART]},
    "PartUrlsOut": {"parts": [PART_URL]},
    "PartOut": PART,
    "Readiness": READY,
    "RegisterIn": {"map": "Y2FsaWJyZAE=", "model": MODEL},
    "RollbackIn": {"reason": "more complaints since noon"},
    "RotateIn": {"grace_hours": 24},
    "VersionOut": VERSION,
}
