"""Calibrate PyTorch models, and collect their logits for a fit.

>>> from calibrators.methods.temperature import TemperatureMap
>>> model = CalibratedModule(nn.Linear(4, 3), TemperatureMap(k=3, temperature=1.5))
>>> model(torch.zeros(2, 4)).shape
torch.Size([2, 3])
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "calibrd.torch needs torch: pip install 'calibrd[train]'", name="torch"
    ) from error
from torch import Tensor, nn

from calibrators import CalibrationMap
from calibrators.data import Kind
from calibrd.maps.local_map import LocalMap
from calibrd.maps.torch_graph import MapModule
from calibrd.progress import ProgressBar

__all__ = ["CalibratedModule", "MapModule", "collect_logits", "fingerprint"]

Array = NDArray[Any]
LABELS = ("labels", "label")


class CalibratedModule(nn.Module):
    """A model and its calibration map as one module that returns calibrated probabilities.

    The map's parameters are part of the ``state_dict``, are placed on the model's device and move
    with the module. The module can be exported with ``torch.export`` and ``torch.onnx``.

    The model must return logits as a tensor, as ``output.logits`` or as ``output["logits"]``. For a
    map that was fitted on probabilities, set ``outputs="probabilities"``; the model must then
    return probabilities in one of these forms.
    """

    def __init__(
        self, model: nn.Module, map: CalibrationMap | LocalMap, *, outputs: Kind = "logits"
    ) -> None:
        super().__init__()
        module = MapModule(map)
        if module.kind != outputs:
            raise ValueError(
                f"outputs is {outputs!r}, but the map was fitted on {module.kind}: pass "
                f"outputs={module.kind!r} and a model that returns {module.kind}"
            )
        self.model = model
        self.map = module.to(_device_of(model))
        self._outputs = outputs

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return calibrated probabilities (n, k)."""
        found: Tensor = self.map(_tensor_of(self.model(*args, **kwargs), self._outputs))
        return found

    def logits(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return calibrated logits (n, k); their softmax gives the calibrated probabilities."""
        return self.map.logits(_tensor_of(self.model(*args, **kwargs), self._outputs))


def collect_logits(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    device: str | torch.device | None = None,
    progress: bool = True,
) -> tuple[Array, Array]:
    """Return the logits (n, k) and labels (n,) of a model on the batches of a DataLoader.

    A batch is a tuple of the model's arguments followed by the labels, or a dict with ``labels``
    (or ``label``) whose other entries are keyword arguments of the model. The model runs in eval
    mode without gradients; its mode is restored afterwards. Batches are moved to ``device``, by
    default the model's. Logits of lower precision are converted to float32.
    """
    target = _device_of(model) if device is None else torch.device(device)
    if device is not None:
        model = model.to(target)
    logits, labels = [], []
    with (
        _evaluating(model),
        torch.inference_mode(),
        ProgressBar(_length(loader), "logits", shown=progress, unit="batch") as bar,
    ):
        for batch in loader:
            args, kwargs, truth = _parts(batch)
            output = _tensor_of(model(*_moved(args, target), **_moved(kwargs, target)), "logits")
            wide = output.to(torch.promote_types(output.dtype, torch.float32))
            logits.append(wide.cpu().numpy())
            labels.append(torch.as_tensor(truth).cpu().numpy())
            bar.add(1)
    if not logits:
        raise ValueError("loader must yield at least one batch")
    return np.concatenate(logits), np.concatenate(labels)


def fingerprint(module: nn.Module) -> str:
    """Return a hash of the names, shapes, types and values in a module's ``state_dict``.

    The fingerprint ties a map to the module. It is the same on every device and changes with every
    training step.
    """
    found = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        if not isinstance(value, Tensor):
            raise TypeError(
                f"the module's state_dict must contain only tensors, but {name!r} is a "
                f"{type(value).__name__}: use calibrd.fingerprint on the model's file"
            )
        plain = value.detach().cpu().contiguous()
        found.update(f"{name}\0{plain.dtype}\0{tuple(plain.shape)}\0".encode())
        found.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return f"sha256:{found.hexdigest()}"


def _device_of(model: nn.Module) -> torch.device:
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def _tensor_of(output: Any, name: str) -> Tensor:
    if isinstance(output, Tensor):
        return output
    found = output.get(name) if isinstance(output, Mapping) else None
    found = getattr(output, name, None) if found is None else found
    if isinstance(found, Tensor):
        return found
    raise TypeError(
        f"the model must return {name} as a tensor, output.{name} or output[{name!r}], "
        f"got {type(output).__name__}"
    )


def _parts(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Split a batch into the model's positional and keyword arguments, and the labels."""
    if isinstance(batch, Mapping):
        named = next((name for name in LABELS if name in batch), None)
        if named is not None:
            rest = {name: value for name, value in batch.items() if name not in LABELS}
            return (), rest, batch[named]
    elif isinstance(batch, list | tuple) and len(batch) >= 2:
        *inputs, labels = batch
        return tuple(inputs), {}, labels
    raise TypeError(
        f"a batch must be (inputs..., labels) or a dict with 'labels', got {type(batch).__name__}"
    )


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: _moved(one, device) for name, one in value.items()}
    if isinstance(value, list | tuple):
        moved = [_moved(one, device) for one in value]
        return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)
    return value


def _length(loader: Iterable[Any]) -> int | None:
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training
