"""Codecs for arrays, one module per format; input is untrusted.

``read_arrays`` and ``encode`` are for bodies in memory, ``inspect`` and ``load`` for datasets on
disk. Unreadable bytes raise Malformed, broken rules Invalid (or a DataError of calibrators),
exceeded limits TooLarge; no input raises anything else.
"""

from service.datasets.formats.bodies import (
    Arrays,
    Codec,
    Format,
    all_codecs,
    encode,
    format_of,
    media_types,
    read_arrays,
)
from service.datasets.formats.dataset_files import Facts, Limits, inspect, load
from service.datasets.formats.dataset_sample import sample
from service.datasets.formats.json_text import arrays_of_document

__all__ = [
    "Arrays",
    "Codec",
    "Facts",
    "Format",
    "Limits",
    "all_codecs",
    "arrays_of_document",
    "encode",
    "format_of",
    "inspect",
    "load",
    "media_types",
    "read_arrays",
    "sample",
]
