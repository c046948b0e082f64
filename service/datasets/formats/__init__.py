"""Array codecs, one module per format. Input is untrusted.

``read_arrays`` and ``encode`` handle bodies in memory; ``inspect`` and ``load`` handle datasets on
disk. Unreadable bytes raise Malformed, invalid data raises Invalid (or a DataError from
calibrators), and oversized input raises TooLarge. No input raises any other error.
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
