"""The cost of importing, and the public names."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

import calibrators
import calibrators.metrics


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


HEAVY = ("torch", "scipy", "onnx", "onnxruntime", "vl_convert", "pydantic", "httpx", "pandas")


@pytest.mark.parametrize(
    "code",
    [
        "import calibrators",
        "import calibrators; calibrators.all_methods()",
        "import calibrators.metrics, calibrators.archive, calibrators.charts",
        "import numpy as np; from calibrators.methods.temperature import TemperatureScaling as T; "
        "from calibrators import CalibrationSet as S, evaluate; z = np.eye(3)[[0, 1, 2] * 50] * 3; "
        "s = S(z, [0, 1, 2, 1, 1, 0] * 25); p = T().fit(s).apply(z); evaluate(p, s.labels)",
    ],
)
def test_nothing_heavy_is_loaded(code: str) -> None:
    loaded = run(f"import sys; {code}; print(*[m for m in {HEAVY!r} if m in sys.modules])")
    assert loaded == ""


def test_import_costs_little_more_than_numpy() -> None:
    def seconds(code: str) -> float:
        """Return processor time, which hardly depends on how busy the machine is."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(code)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    codes = ("import calibrators", "import numpy")
    rounds = [[seconds(code) for code in codes] for _ in range(5)]
    ours, numpy = (min(one) for one in zip(*rounds, strict=True))
    assert ours < 2.5 * numpy


@pytest.mark.parametrize("module", [calibrators, calibrators.metrics])
def test_public_names_are_sorted_and_there(module: object) -> None:
    names = module.__all__  # type: ignore[attr-defined]
    assert names == sorted(names)
    assert all(hasattr(module, name) for name in names)


def test_no_method_loads_torch_on_the_cpu() -> None:
    code = (
        "import sys, numpy as np; from calibrators import CalibrationSet, all_methods; "
        "d = CalibrationSet(np.eye(3)[[0, 1, 2] * 9] * 3, [0, 1, 2, 1, 1, 0, 0, 0, 2] * 3); "
        "all_methods()['temperature']().fit(d); print('torch' in sys.modules); "
        "all_methods()['smart']().fit(d); "
        "print('torch' in sys.modules, 'torch._dynamo' in sys.modules)"
    )
    assert run(code).split() == ["False", "False", "False"]
