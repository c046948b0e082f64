"""Files of every format, written by other libraries and by hand."""

from __future__ import annotations

import csv as csv_module
import io
import json
import struct
import zipfile

import numpy as np
import safetensors.numpy

from service.datasets.formats import (
    Format,
    Limits,
    read_arrays,
)

ANSWERED = [one for one in Format if one.codec.encode is not None]
LIMIT = 1 << 20
LIMITS = Limits(bytes=1 << 26, json_bytes=LIMIT, classes=1000)
LOGITS = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
LABELS = np.arange(7) % 3


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(*, packed: bool = False, **arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(file, **arrays)
    return file.getvalue()


def csv(values: np.ndarray, labels: np.ndarray, prefix: str = "logit") -> bytes:
    """Return CSV as pandas writes it."""
    file = io.StringIO()
    writer = csv_module.writer(file)
    writer.writerow([*(f"{prefix}_{one}" for one in range(values.shape[1])), "label"])
    writer.writerows([*row, label] for row, label in zip(values.tolist(), labels, strict=True))
    return file.getvalue().encode()


def npy_of_header(text: str, data: bytes = b"", version: int = 1) -> bytes:
    head = text.encode("latin-1") + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(head))
    return b"\x93NUMPY" + bytes([version, 0]) + length + head + data


def header(descr: str = "'<f4'", shape: str = "(1, 2)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


def tensors_of(described: object, data: bytes = b"") -> bytes:
    text = described if isinstance(described, bytes) else json.dumps(described).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(shape: list[int], first: int, last: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


def zip_of(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        for name, data in members.items():
            made.writestr(name, data)
    return file.getvalue()


def read(format: Format, body: bytes, limit: int = LIMIT):
    return read_arrays(format, body, limit=limit)


VALID = {
    Format.NPY: npy(LOGITS),
    Format.NPZ: npz(logits=LOGITS, labels=LABELS),
    Format.SAFETENSORS: safetensors.numpy.save({"logits": LOGITS, "labels": LABELS}),
    Format.JSON: json.dumps({"logits": LOGITS.tolist(), "labels": LABELS.tolist()}).encode(),
    Format.CSV: csv(LOGITS, LABELS),
}
PACKED = npz(packed=True, logits=LOGITS, labels=LABELS)
GOOD = np.float32([1, 2]).tobytes()
