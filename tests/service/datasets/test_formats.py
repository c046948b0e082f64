"""Conversion of bytes to arrays and back, compared with independent libraries."""

from __future__ import annotations

import io
import json
import warnings

import numpy as np
import pytest
import safetensors.numpy
from helpers.format_samples import (
    ANSWERED,
    LABELS,
    LOGITS,
    VALID,
    npy,
    npz,
    read,
    tensor,
    tensors_of,
)

from service.datasets.formats import (
    Format,
    arrays_of_document,
    encode,
    format_of,
)
from service.errors import NotAcceptable, Unsupported


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/x-npy", Format.NPY),
        ("application/numpy", Format.NPY),
        ("application/zip", Format.NPZ),
        ("Application/JSON; charset=utf-8", Format.JSON),
        ("application/vnd.safetensors", Format.SAFETENSORS),
        ("text/csv; charset=utf-8; header=present", Format.CSV),
    ],
)
def test_format_follows_the_content_type(content_type, expected):
    assert format_of(content_type, b"") is expected


@pytest.mark.parametrize("content_type", [None, "", "application/octet-stream; x=1"])
@pytest.mark.parametrize("format", ANSWERED)
def test_format_is_detected_from_the_first_bytes(content_type, format):
    assert format_of(content_type, VALID[format][:16]) is format


@pytest.mark.parametrize(
    ("content_type", "head"),
    [("text/plain", b"{"), (None, b"1,2,3"), (None, b"logit_0,label"), (None, b"")],
)
def test_other_formats_are_refused_with_a_list(content_type, head):
    with pytest.raises(Unsupported, match=r"application/x-npy") as caught:
        format_of(content_type, head)
    assert caught.value.code == "unsupported_media_type"


# what is read


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", "<f8", ">f8", "|i1", "<i4", ">i8", "<u2"])
@pytest.mark.parametrize("shape", [(6, 4), (24,), (24, 1), (1, 24)])
def test_npy_of_numpy_is_read_and_ours_is_read_by_numpy(dtype, shape):
    array = np.arange(24).reshape(shape).astype(dtype)
    for ordered in (array, np.asfortranarray(array)):
        np.testing.assert_array_equal(read(Format.NPY, npy(ordered)).values, array)
    ours = np.load(io.BytesIO(encode(Format.NPY, {"one": array})), allow_pickle=False)
    np.testing.assert_array_equal(ours, array)
    assert ours.dtype == array.dtype


def test_npy_is_not_copied():
    body = npy(LOGITS)
    assert np.shares_memory(read(Format.NPY, body).values, np.frombuffer(body, np.uint8))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(version):
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.lib.format.write_array(file, LOGITS, version=version)
    np.testing.assert_array_equal(read(Format.NPY, file.getvalue()).values, LOGITS)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_npz_of_numpy(packed, kind):
    found = read(Format.NPZ, npz(packed=packed, **{kind: LOGITS.T.copy().T, "labels": LABELS}))
    np.testing.assert_array_equal(found.values, LOGITS)
    np.testing.assert_array_equal(found.labels, LABELS)
    assert found.declared == kind


def test_safetensors_of_the_package_and_back():
    found = read(Format.SAFETENSORS, VALID[Format.SAFETENSORS])
    np.testing.assert_array_equal(found.values, LOGITS)
    np.testing.assert_array_equal(found.labels, LABELS)
    arrays = {"classes": LABELS.astype(np.int32), "probabilities": LOGITS.astype(np.float64)}
    theirs = safetensors.numpy.load(encode(Format.SAFETENSORS, arrays))
    for name, array in arrays.items():
        np.testing.assert_array_equal(theirs[name], array)


@pytest.mark.parametrize(("dtype", "code"), [("F16", "<f2"), ("F64", "<f8"), ("I32", "<i4")])
def test_safetensors_types(dtype, code):
    array = np.array([[1, -2], [3, 4]], code)
    body = tensors_of({"logits": tensor([2, 2], 0, array.nbytes, dtype)}, array.tobytes())
    np.testing.assert_array_equal(read(Format.SAFETENSORS, body).values, array)


def test_bfloat16_becomes_float32():
    numbers = np.array([[1.0, -2.5, 3.0e38]], np.float32)
    upper = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    body = tensors_of({"logits": tensor([1, 3], 0, 6, "BF16")}, upper.tobytes())
    values = read(Format.SAFETENSORS, body).values
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, numbers, rtol=2**-7)


def test_json_forms():
    assert read(Format.JSON, b"[1, 2.5]").values.tolist() == [1.0, 2.5]
    assert read(Format.JSON, b" [[1, 2], [3, 4]]").values.shape == (2, 2)
    found = read(Format.JSON, b'{"probabilities": [[0.5, 0.5]], "labels": [1]}')
    assert (found.declared, found.labels.dtype.kind) == ("probabilities", "i")
    other = arrays_of_document({"logits": [[1, 2]], "labels": [0], "method": "temperature"})
    assert other.declared == "logits"


def test_encoded_npz_and_json_are_read_by_others():
    arrays = {"classes": LABELS, "probabilities": LOGITS}
    with np.load(io.BytesIO(encode(Format.NPZ, arrays)), allow_pickle=False) as theirs:
        np.testing.assert_array_equal(theirs["probabilities"], LOGITS)
        np.testing.assert_array_equal(theirs["classes"], LABELS)
    assert json.loads(encode(Format.JSON, {"classes": LABELS.T})) == {"classes": LABELS.tolist()}
    for format in (Format.NPY, Format.CSV):
        with pytest.raises(NotAcceptable):
            encode(format, arrays)
