"""Lookup of torch devices, with readable errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibrators.errors import FitError

if TYPE_CHECKING:
    import torch


def array_device(name: str) -> str | None:
    """Return None for the CPU, where fits use numpy; otherwise, the name of the torch device."""
    return None if name == "cpu" else str(torch_device(name))


def torch_device(name: str) -> torch.device:
    """Return a torch device, such as "cpu" or "cuda:1"; raise a FitError if it is unavailable."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise FitError(
            "torch_missing",
            f"a fit on device {name!r} needs torch: pip install 'calibrd[train]'",
        ) from error
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise FitError(
            "device_unavailable",
            f"device must be available on this machine ({', '.join(available_devices())}), "
            f"got {name!r}",
        ) from error
    return device


def available_devices() -> list[str]:
    """Return the names of the torch devices on this machine."""
    import torch

    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
