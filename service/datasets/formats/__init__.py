"""Arrays as bytes and back: npy, npz, safetensors, JSON and CSV, each read with suspicion.

``read_arrays`` and ``encode`` are for bodies in memory, ``inspect`` and ``load`` for datasets on
disk. Bytes that cannot be read are Malformed, what breaks a rule is Invalid (or a DataError of
calibrators), more than a limit is TooLarge; nothing else is raised, whatever the bytes.
"""

from service.datasets.formats.bodies import (
    ANSWERED,
    MEDIA_TYPES,
    Arrays,
    Format,
    arrays_of_document,
    encode,
    format_of,
    read_arrays,
    unpacked_size,
)
from service.datasets.formats.dataset_files import Facts, Limits, inspect, load
from service.datasets.formats.dataset_sample import sample

__all__ = [
    "ANSWERED",
    "MEDIA_TYPES",
    "Arrays",
    "Facts",
    "Format",
    "Limits",
    "arrays_of_document",
    "encode",
    "format_of",
    "inspect",
    "load",
    "read_arrays",
    "sample",
    "unpacked_size",
]
