"""Hostile bytes: each is refused with a code, quickly and with little memory."""

from __future__ import annotations

import io
import struct
import time
import tracemalloc
import warnings
import zipfile
import zlib

import numpy as np
import pytest
from helpers.format_samples import (
    GOOD,
    LIMIT,
    LOGITS,
    PACKED,
    VALID,
    header,
    npy,
    npy_of_header,
    read,
    tensor,
    tensors_of,
    zip_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators import CalibrationSet, DataError
from service.datasets.formats import (
    Format,
)
from service.datasets.formats.npy import decode
from service.datasets.formats.npz import members
from service.errors import Invalid, Malformed, ServiceError, TooLarge

BIG = 1 << 32
BAD_NPY = {
    "object": (npy_of_header(header("'|O'"), b"cos\nsystem\n."), Invalid, "bad_type"),
    "complex": (npy(np.ones((1, 2), np.complex64)), Invalid, "bad_type"),
    "text": (npy(np.array([["a", "b"]])), Invalid, "bad_type"),
    "time": (npy(np.zeros((1, 2), "M8[s]")), Malformed, "bad_header"),
    "long double": (npy(np.zeros((1, 2), np.longdouble)), Invalid, "bad_type"),
    "structured": (npy(np.zeros(2, [("a", "f4"), ("b", "f4")])), Invalid, "bad_type"),
    "37 GB": (
        npy_of_header(header(shape="(10000000, 1000)"), b"1234"),
        Malformed,
        "truncated_body",
    ),
    "overflow": (npy_of_header(header(shape=f"({BIG}, {BIG})")), Malformed, "truncated_body"),
    "2^64 rows of nothing": (
        npy_of_header(header(shape=f"({1 << 64}, 0)")),
        Malformed,
        "bad_header",
    ),
    "99 dimensions": (npy_of_header(header(shape="(" + "1," * 99 + ")")), Malformed, "bad_header"),
    "negative": (npy_of_header(header(shape="(-1, 2)")), Malformed, "bad_header"),
    "code": (npy_of_header("__import__('os').getcwd()"), Malformed, "bad_header"),
    "no dict": (npy_of_header("[1, 2]"), Malformed, "bad_header"),
    "brackets": (npy_of_header("(" * 4000), Malformed, "bad_header"),
    "missing key": (npy_of_header("{'descr': '<f4', 'shape': (1,), }"), Malformed, "bad_header"),
    "doubled key": (
        npy_of_header("{'descr': '<f4', 'descr': '<f4', 'shape': (1,), }"),
        Malformed,
        "bad_header",
    ),
    "swapped": (npy_of_header(header("True", order="'<f4'")), Malformed, "bad_header"),
    "unknown type": (npy_of_header(header("'<f3'")), Malformed, "bad_header"),
    "long header": (npy_of_header(" " * 5000, version=2), Malformed, "bad_header"),
    "4 GB header": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", Malformed, "bad_header"),
    "version 9": (npy_of_header(header(), b"\0" * 8, version=9), Malformed, "unknown_version"),
    "trailing": (npy(LOGITS) + b"\0", Malformed, "trailing_bytes"),
    "other magic": (b"\x89PNG" + b"\0" * 100, Malformed, "not_npy"),
    "0-d": (npy(np.float32(1)), DataError, "bad_shape"),
    "3-d": (npy(np.ones((2, 2, 2))), DataError, "bad_shape"),
    "empty": (b"", Malformed, "empty_body"),
}


@pytest.mark.parametrize("case", BAD_NPY)
def test_bad_npy(case):
    body, kind, code = BAD_NPY[case]
    with pytest.raises(kind) as caught:
        read(Format.NPY, body)
    assert caught.value.code == code


BAD_TENSORS = {
    "2^63 header": (struct.pack("<Q", 1 << 63) + b"{}", Malformed, "bad_header"),
    "truncated header": (struct.pack("<Q", 99) + b"{}", Malformed, "truncated_body"),
    "no header": (b"\x02\0\0", Malformed, "truncated_body"),
    "not JSON": (tensors_of(b"{'a'"), Malformed, "bad_header"),
    "not UTF-8": (tensors_of(b'{"\xff": 1}'), Malformed, "bad_header"),
    "a list": (tensors_of([]), Malformed, "bad_header"),
    "NaN": (tensors_of(b'{"logits": NaN}'), Malformed, "bad_header"),
    "deep": (tensors_of(b"[" * 60000), Malformed, "bad_header"),
    "duplicate keys": (tensors_of(b'{"logits": 1, "logits": 1}'), Malformed, "bad_header"),
    "no offsets": (tensors_of({"logits": {"dtype": "F32", "shape": [1]}}), Malformed, "bad_header"),
    "float shape": (
        tensors_of({"logits": tensor([1.0, 2], 0, 8)}, GOOD),  # type: ignore[list-item]
        Malformed,
        "bad_header",
    ),
    "further keys": (
        tensors_of({"logits": tensor([1, 2], 0, 8) | {"x": 1}}, GOOD),
        Malformed,
        "bad_header",
    ),
    "overlap": (
        tensors_of({"logits": tensor([1, 2], 0, 8), "labels": tensor([1], 4, 8)}, GOOD),
        Malformed,
        "bad_offsets",
    ),
    "hole": (
        tensors_of({"logits": tensor([1, 2], 4, 12)}, b"1234" + GOOD),
        Malformed,
        "bad_offsets",
    ),
    "backwards": (tensors_of({"logits": tensor([1, 2], 8, 0)}, GOOD), Malformed, "bad_offsets"),
    "wrong length": (tensors_of({"logits": tensor([1, 3], 0, 8)}, GOOD), Malformed, "bad_offsets"),
    "overflow": (tensors_of({"logits": tensor([BIG, BIG], 0, 0)}), Malformed, "bad_offsets"),
    "truncated": (
        tensors_of({"logits": tensor([1, 2], 0, 8)}, GOOD[:5]),
        Malformed,
        "truncated_body",
    ),
    "trailing": (
        tensors_of({"logits": tensor([1, 2], 0, 8)}, GOOD * 2),
        Malformed,
        "trailing_bytes",
    ),
    "complex": (tensors_of({"logits": tensor([1], 0, 8, "C64")}, GOOD), Invalid, "bad_type"),
    "list as type": (
        tensors_of({"logits": tensor([1], 0, 8) | {"dtype": []}}, GOOD),
        Invalid,
        "bad_type",
    ),
    "other name": (tensors_of({"x": tensor([1, 2], 0, 8)}, GOOD), Invalid, "unknown_array"),
    "nothing": (tensors_of({}), Invalid, "logits_or_probabilities"),
    "3-d labels": (
        tensors_of({"logits": tensor([1, 1], 0, 4), "labels": tensor([1, 1, 1], 4, 8)}, GOOD),
        DataError,
        "bad_label_shape",
    ),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_bad_safetensors(case):
    body, kind, code = BAD_TENSORS[case]
    with pytest.raises(kind) as caught:
        read(Format.SAFETENSORS, body)
    assert caught.value.code == code


BAD_JSON = {
    "NaN": (b"[NaN]", Malformed, "malformed_json"),
    "Infinity": (b'{"logits": [[Infinity, 1]]}', Malformed, "malformed_json"),
    "1e999": (b"[1e999]", Malformed, "malformed_json"),
    "400 digits": (b"[" + b"9" * 400 + b"]", Malformed, "malformed_json"),
    "deep": (b"[" * 100_000, Invalid, "too_deep"),
    "deep and closed": (b"[" * 1000 + b"1" + b"]" * 1000, Invalid, "too_deep"),
    "truncated": (b'{"logits": [[1,', Malformed, "malformed_json"),
    "two texts": (b"[1] [2]", Malformed, "malformed_json"),
    "not UTF-8": (b'["\xff"]', Malformed, "malformed_json"),
    "ragged": (b"[[1, 2], [3]]", Invalid, "ragged"),
    "rows and numbers": (b"[[1, 2], 3]", Invalid, "not_an_array"),
    "numbers and rows": (b"[3, [1, 2]]", Invalid, "not_a_number"),
    "text": (b'[[1, "2"]]', Invalid, "not_a_number"),
    "true": (b"[[1, true]]", Invalid, "not_a_number"),
    "null": (b"[[1, null]]", Invalid, "not_a_number"),
    "3-d": (b"[[[1, 2]]]", Invalid, "not_a_number"),
    "boolean labels": (b'{"logits": [[1, 2]], "labels": [true]}', Invalid, "not_a_number"),
    "a number": (b"3", Invalid, "not_an_array"),
    "text for logits": (b'{"logits": "1,2"}', Invalid, "not_an_array"),
    "unknown": (b'{"logits": [[1, 2]], "extra": 1}', Invalid, "unknown_array"),
    "a lone other name": (b'{"x": [[1, 2]]}', Invalid, "unknown_array"),
    "both": (b'{"logits": [1], "probabilities": [1]}', Invalid, "logits_or_probabilities"),
    "labels alone": (b'{"labels": [1]}', Invalid, "logits_or_probabilities"),
}


@pytest.mark.parametrize("case", BAD_JSON)
def test_bad_json(case):
    body, kind, code = BAD_JSON[case]
    with pytest.raises(kind) as caught:
        read(Format.JSON, body)
    assert caught.value.code == code


def test_labels_beyond_64_bits_are_out_of_range():
    found = read(Format.JSON, b'{"logits": [[1, 2], [1, 2]], "labels": [18446744073709551615, -1]}')
    with pytest.raises(DataError) as caught:
        CalibrationSet(found.values, found.labels)
    assert caught.value.code == "label_out_of_range"


def patched(body: bytes, magic: bytes, offset: int, value: bytes) -> bytes:
    """Replace a field of the last record that starts with ``magic``."""
    place = body.rindex(magic) + offset
    return body[:place] + value + body[place + len(value) :]


CENTRAL, LOCAL, END = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"
ONE = zip_of({"logits.npy": npy(LOGITS)})
DEFLATED = zip_of({"logits.npy": npy(np.zeros((100, 100)))}, zipfile.ZIP_DEFLATED)
CRC = zlib.crc32(npy(np.zeros((100, 100)))[:80_000])
PACKED_BYTES = zipfile.ZipFile(io.BytesIO(DEFLATED)).infolist()[0].compress_size


def doubled() -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as made:
            made.writestr("logits.npy", npy(LOGITS))
            made.writestr("logits.npy", npy(LOGITS))
        return file.getvalue()


BAD_ZIPS = {
    "encrypted": (patched(ONE, CENTRAL, 8, b"\x01\x00"), Malformed, "encrypted"),
    "bzip2": (
        zip_of({"logits.npy": npy(LOGITS)}, zipfile.ZIP_BZIP2),
        Malformed,
        "bad_compression",
    ),
    "directory": (zip_of({"logits/": b"", "logits.npy": npy(LOGITS)}), Invalid, "unknown_array"),
    "path": (zip_of({"../logits.npy": npy(LOGITS)}), Invalid, "unknown_array"),
    "absolute path": (zip_of({"/logits.npy": npy(LOGITS)}), Invalid, "unknown_array"),
    "other name": (zip_of({"x.npy": npy(LOGITS)}), Invalid, "unknown_array"),
    "duplicates": (doubled(), Malformed, "duplicate_names"),
    "two names": (patched(ONE, LOCAL, 30, b"L"), Malformed, "bad_zip"),
    "many members": (zip_of({f"{i}.npy": b"" for i in range(99)}), Malformed, "too_many_members"),
    "comment": (patched(ONE, END, 20, b"\x01\x00") + b"x", Malformed, "bad_zip"),
    "trailing": (ONE + b"\0", Malformed, "bad_zip"),
    "leading": (b"\0" + ONE, Malformed, "bad_zip"),
    "wrong CRC": (patched(ONE, CENTRAL, 16, b"\x01\x02\x03\x04"), Malformed, "bad_zip"),
    "stored lie": (patched(ONE, CENTRAL, 24, b"\xff\xff\xff\x7f"), Malformed, "bad_zip"),
    "deflated claims more": (
        patched(DEFLATED, CENTRAL, 24, b"\xff\xff\xff\x7f"),
        Malformed,
        "bad_zip",
    ),
    "deflated gives more": (
        patched(DEFLATED, CENTRAL, 24, struct.pack("<I", 80_000)),
        Malformed,
        "bad_zip",
    ),
    "deflated gives more than its CRC is of": (
        patched(DEFLATED, CENTRAL, 16, struct.pack("<3I", CRC, PACKED_BYTES, 80_000)),
        Malformed,
        "bad_zip",
    ),
    "name with a null": (patched(ONE, CENTRAL, 46 + 6, b"\0"), Invalid, "unknown_array"),
    "deflated gives less": (
        patched(DEFLATED, CENTRAL, 24, struct.pack("<I", 80_500)),
        Malformed,
        "bad_zip",
    ),
    "zip64 without record": (patched(ONE, END, 16, b"\xff" * 4), Malformed, "bad_zip"),
    "zip64 size without field": (patched(ONE, CENTRAL, 20, b"\xff" * 8), Malformed, "bad_zip"),
    "member outside": (patched(ONE, CENTRAL, 42, b"\xff\xff\xff\x7f"), Malformed, "bad_zip"),
    "two disks": (patched(ONE, END, 4, b"\x01\x00"), Malformed, "bad_zip"),
    "count": (patched(ONE, END, 8, b"\x02\x00\x02\x00"), Malformed, "bad_zip"),
    "comment beyond the directory": (patched(ONE, CENTRAL, 32, b"\xff\x00"), Malformed, "bad_zip"),
    "bad npy": (zip_of({"logits.npy": b"\x93NUMPY"}), Malformed, "truncated_body"),
    "empty member": (zip_of({"logits.npy": b""}), Malformed, "truncated_body"),
    "object array": (
        zip_of({"logits.npy": npy_of_header(header("'|O'"), b"cos\nsystem\n.")}),
        Invalid,
        "bad_type",
    ),
    "no members": (zip_of({}), Invalid, "logits_or_probabilities"),
}


@pytest.mark.parametrize("case", BAD_ZIPS)
def test_bad_zip(case):
    body, kind, code = BAD_ZIPS[case]
    with pytest.raises(kind) as caught:
        read(Format.NPZ, body)
    assert caught.value.code == code


def test_overlapping_members_are_refused():
    body = zip_of({"logits.npy": npy(LOGITS), "labels.npy": npy(LOGITS)})
    second = body.rindex(CENTRAL)
    twice = body[:second] + body[second : second + 42] + b"\0" * 4 + body[second + 46 :]
    with pytest.raises(Malformed) as caught:
        read(Format.NPZ, twice)
    assert caught.value.code == "bad_zip"


@pytest.mark.parametrize(
    ("descr", "shape"),
    [
        ("'T'", "(0,)"),
        ("()", "(0,)"),
        ("('a',)", "(0,)"),
        ("'<f8'", "(281474976710655, 281474976710655, 0)"),
    ],
)
def test_npy_headers_that_numpy_fails_on_are_refused(descr, shape):
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    with pytest.raises(Malformed):
        decode(b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text)


def test_a_second_end_record_is_not_read_in_place_of_the_first():
    """``zipfile`` prefers a zip64 record, whose directory may have millions of members."""
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 0, 20, *[0] * 8, 10, 0, 76, *[0] * 4)
    hidden = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, 56, 0)
    hidden += struct.pack("<4sLQL", b"PK\6\7", 0, 56, 1)
    directory = entry + b"logits.npy" + hidden
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(directory), 0, 0)
    with pytest.raises(Malformed, match="two end-of-central-directory records"):
        members(io.BytesIO(directory + end), len(directory + end), 1 << 20)


def test_zip64_of_numpy_is_read():
    """numpy makes zipfile write zip64 headers; here the directory has them too."""
    body = VALID[Format.NPZ]
    assert read(Format.NPZ, body).values.shape == LOGITS.shape
    place = body.rindex(END)
    count, length, offset = struct.unpack_from("<HII", body, place + 10)
    record = struct.pack(
        "<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, length, offset
    )
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, place, 1)
    end = struct.pack("<4s4H2LH", END, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    wide = body[:place] + record + locator + end
    with np.load(io.BytesIO(wide)) as theirs:
        np.testing.assert_array_equal(theirs["logits"], read(Format.NPZ, wide).values)


def test_a_bomb_costs_no_memory():
    body = zip_of({"logits.npy": npy(np.zeros((4000, 1000)))}, zipfile.ZIP_DEFLATED)
    assert len(body) < 100_000
    tracemalloc.start()
    with pytest.raises(TooLarge):
        read(Format.NPZ, body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < LIMIT


def test_more_bytes_than_allowed():
    for format, body in VALID.items():
        with pytest.raises(TooLarge) as caught:
            read(format, body, limit=len(body) - 1)
        assert caught.value.code == "body_too_large"


# CSV that ends with a whole line is whole
CUTS = {**VALID, "packed": PACKED}
del CUTS[Format.CSV]


@pytest.mark.parametrize("case", CUTS)
def test_every_prefix_is_malformed(case):
    body = CUTS[case]
    format = Format.NPZ if case == "packed" else case
    for length in range(len(body)):
        with pytest.raises(Malformed):
            read(format, body[:length])


def told(format: Format, body: bytes) -> str:
    """Return the error that a caller gets for a body, or None if it is accepted."""
    try:
        read(format, body)
    except (ServiceError, DataError) as error:
        return f"{error.code}: {error}"
    return ""


def only_told_errors(format: Format, body: bytes) -> None:
    started = time.monotonic()
    assert len(told(format, body)) < 5000
    assert time.monotonic() - started < 10


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(Format), st.binary(max_size=300), st.booleans())
def test_random_bytes(format, body, after_a_good_start):
    only_told_errors(format, VALID[format][:8] + body if after_a_good_start else body)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from([*VALID.items(), (Format.NPZ, PACKED)]),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_mutated_files(valid, changes):
    format, body = valid
    mutated = bytearray(body)
    for place, byte in changes:
        mutated[place % len(mutated)] = byte
    only_told_errors(format, bytes(mutated))
