"""Where torch computes: the one place that imports it to look."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from calibrators.blocks import get_threads
from calibrators.errors import FitError

if TYPE_CHECKING:
    import torch

WORTH_A_THREAD = 4_000_000


class _Borrowed:
    """torch's number of threads belongs to the whole process: the last fit to end gives it back."""

    lock = threading.Lock()
    by = 0
    before = 1


def has_torch() -> bool:
    """Return whether torch is installed, without loading it."""
    return importlib.util.find_spec("torch") is not None


def torch_device(name: str) -> torch.device:
    """The torch device called "cpu", "cuda" or "cuda:1"; a FitError if it cannot be had."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise FitError(
            "torch_missing", "this fit needs torch: pip install 'calibrd[train]'"
        ) from error
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise FitError(
            "device_unavailable",
            f"device must be one this machine has ({', '.join(available_devices())}), got {name!r}",
        ) from error
    return device


def available_devices() -> list[str]:
    """The devices torch can compute on here."""
    import torch

    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]


@contextmanager
def torch_threads(elements: int) -> Iterator[None]:
    """Let torch use our number of threads for arrays of this size, one if they are small.

    On small arrays torch's threads mostly wait for each other, and on a busy machine for long.
    """
    import torch

    with _Borrowed.lock:
        if _Borrowed.by == 0:
            _Borrowed.before = torch.get_num_threads()
        _Borrowed.by += 1
        torch.set_num_threads(get_threads() if elements >= WORTH_A_THREAD else 1)
    try:
        yield
    finally:
        with _Borrowed.lock:
            _Borrowed.by -= 1
            if _Borrowed.by == 0:
                torch.set_num_threads(_Borrowed.before)
