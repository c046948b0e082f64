"""Segments in the SDK: upload, fits, predict, local maps, and files."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from helpers.live_service import Running
from helpers.refusals import refused
from helpers.segment_samples import rows_of_segments

import calibrd
from calibrators import CalibrationSet, DataError, FitError, archive, evaluate
from calibrators.error_codes import ERROR_CODES
from calibrators.errors import UnknownSegments
from calibrators.methods.segmented import Segmented, SegmentedMap
from calibrators.segments import Segments
from calibrd import errors
from calibrd.batch import BatchApply, apply_file
from calibrd.cli.arguments import run
from calibrd.io.calibration_sets import as_segments
from calibrd.io.dataset_files import read_set
from calibrd.io.payload import pack_dataset

DATA = rows_of_segments()
SET = CalibrationSet(**DATA)
NAME = "sdk-segments"


@pytest.fixture
def fitted(client: calibrd.Client) -> SegmentedMap:
    """Return the map of ``sdk-segments@1``, fitted by the service."""
    try:
        version = client.get_version(f"{NAME}@1")
    except errors.NotFound:
        version = client.fit(NAME, **DATA, method="segmented", progress=False)
    assert (version.number, version.method) == (1, "segmented")
    found = client.load(f"{NAME}@1", refresh=None).map
    assert isinstance(found, SegmentedMap)
    return found


def test_the_service_and_a_local_fit_give_the_same_map(fitted: SegmentedMap) -> None:
    here = calibrd.fit_local(**DATA, method="segmented", progress=False)
    assert archive.dump(here.map) == archive.dump(fitted)
    assert fitted.segments == ("app", "web")
    assert {row.name for row in here.report.by_segment} == {"app", "web"}


def test_rows_that_judge_here_have_segments_too() -> None:
    other = rows_of_segments(400, seed=9)
    judged = calibrd.fit_local(
        **DATA, evaluation=tuple(other.values()), method="segmented", progress=False
    )
    assert judged.report.n == 400
    with pytest.raises(DataError, match="name the segment of each row"):
        calibrd.fit_local(
            **DATA,
            evaluation=(other["logits"], other["labels"]),
            method="segmented",
            progress=False,
        )


def test_predict_load_and_apply_give_the_same(
    client: calibrd.Client, fitted: SegmentedMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = [*DATA["segments"][:-1], "nowhere"]
    expected = fitted.apply(DATA["logits"], segments)
    local = client.load(f"{NAME}@1", refresh=None)
    with pytest.warns(UnknownSegments, match="1 of 2400 rows are in segments .*: 'nowhere'"):
        np.testing.assert_array_equal(local.apply(DATA["logits"], segments), expected)
    np.testing.assert_array_equal(
        local.transform(DATA["logits"].tolist(), pd.Series(segments)),
        fitted.transform(DATA["logits"].astype(float), segments),
    )
    with pytest.warns(UnknownSegments, match="1 of 2400 rows are in segments .*: 'nowhere'"):
        there = client.predict(f"{NAME}@1", DATA["logits"], segments=segments)
    np.testing.assert_array_equal(there, expected)
    monkeypatch.setattr("calibrd.api.predictions.BLOCK_BYTES", 1 << 12)  # in many requests
    segments[0] = "elsewhere"
    with pytest.warns(UnknownSegments, match="2 of 2400 rows are in segments unknown") as told:
        in_blocks = client.predict(f"{NAME}@1", DATA["logits"], segments=segments)
    assert [one.filename for one in told] == [__file__]
    np.testing.assert_array_equal(in_blocks, fitted.apply(DATA["logits"], segments))
    with pytest.warns(UnknownSegments, match="2 of 2400 rows are in segments unknown") as told:
        client.evaluate(f"{NAME}@1", DATA["logits"], DATA["labels"], segments=segments)
    assert [one.filename for one in told] == [__file__]
    one = client.predict(f"{NAME}@1", DATA["logits"][1], segments=["web"])
    np.testing.assert_array_equal(one, expected[1:2])


def test_a_map_of_probabilities_and_two_classes(client: calibrd.Client) -> None:
    shares = 1 / (1 + np.exp(-DATA["logits"][:, 0].astype(float)))
    truth = (DATA["labels"] == 0).astype(int)
    client.fit(
        "sdk-two",
        shares,
        truth,
        kind="probabilities",
        segments=DATA["segments"],
        method="segmented",
        progress=False,
    )
    segments = DATA["segments"][:50]
    local = client.load("sdk-two@1", refresh=None).apply(shares[:50], segments)
    np.testing.assert_array_equal(
        client.predict("sdk-two@1", shares[:50], segments=segments), local
    )
    np.testing.assert_array_equal(
        client.predict("sdk-two@1", shares[:1], segments=segments[:1]), local[:1]
    )


def test_an_async_client_takes_them_as_well(service: Running, fitted: SegmentedMap) -> None:
    async def asked() -> tuple[np.ndarray, calibrd.Report]:
        async with calibrd.AsyncClient(service.url) as client:
            rows = await client.predict(f"{NAME}@1", DATA["logits"], segments=DATA["segments"])
            return rows, await client.evaluate(f"{NAME}@1", **rows_of("values"))

    def rows_of(name: str) -> dict[str, Any]:
        return {name: DATA["logits"], "labels": DATA["labels"], "segments": DATA["segments"]}

    found, report = asyncio.run(asked())
    np.testing.assert_array_equal(found, fitted.apply(DATA["logits"], DATA["segments"]))
    assert [row.rows for row in report.by_segment] == [1200, 1200]


def test_errors_are_raised_before_anything_is_sent(client: calibrd.Client) -> None:
    logits, labels = DATA["logits"], DATA["labels"]
    for segments, code in (
        (["web"], "segments_length"),
        (["web"] * 2399 + [" "], "bad_segment_name"),
        (["web"] * 2399 + [None], "bad_segments"),
        (np.arange(2400), "too_many_segments"),
        (np.zeros(2400), "bad_segments"),
    ):
        with pytest.raises(DataError) as caught:
            client.upload(logits, labels, segments=segments, progress=False)
        assert caught.value.code == code
    with pytest.raises(DataError, match="2400 rows but 3 segments") as caught:
        client.predict("nothing@1", logits, segments=["web"] * 3)
    assert caught.value.code == "segments_length"
    with pytest.raises(TypeError, match=r"segments=, .* cannot be combined"):
        client.start_fit("m", dataset="ds_1", segments=["web"])


def test_refusals_of_the_service_have_error_classes(
    client: calibrd.Client, fitted: SegmentedMap
) -> None:
    plain = client.upload(DATA["logits"], DATA["labels"], progress=False)
    assert plain.segments is None
    with refused("missing_segments", match="send it with segments"):
        client.fit("sdk-none", dataset=plain, method="segmented", progress=False)
    client.fit("sdk-plain", dataset=plain, method="temperature", progress=False)
    with refused("no_segments", match="has no segments"):
        client.predict("sdk-plain@1", DATA["logits"], segments=DATA["segments"])
    report = client.evaluate(
        "sdk-plain@1", DATA["logits"], DATA["labels"], segments=DATA["segments"]
    )
    assert {row.name for row in report.by_segment} == {"app", "web"}


def test_segments_are_part_of_the_dataset_that_is_uploaded_once(client: calibrd.Client) -> None:
    made = client.upload(**DATA, progress=False)
    assert made.segments == 2
    assert client.upload(**DATA, progress=False) == made
    other = client.upload(**{**DATA, "segments": DATA["segments"][::-1]}, progress=False)
    assert other.id != made.id
    in_parts = calibrd.Client(client.url, part_bytes=10_000)
    swapped = {**DATA, "segments": np.where(DATA["segments"] == "web", "shop", "app")}
    with in_parts:
        assert in_parts.upload(**swapped, progress=False).segments == 2


def test_bytes_without_segments_are_unchanged() -> None:
    payload = pack_dataset(np.float32([[2, 1], [0, 3]]), [0, 1], "logits")
    assert payload.media_type == "application/x-safetensors"
    assert payload.sha256 == "f615eda065caf1ee05802d308a2c5236e73ea601c8219eb022c8b3345cb33dc9"


def test_the_bytes_are_an_npz_that_numpy_reads_and_the_same_each_time() -> None:
    payload = pack_dataset(DATA["logits"], DATA["labels"], "logits", DATA["segments"])
    content = payload.read(0, payload.bytes)
    again = pack_dataset(
        DATA["logits"].copy(), DATA["labels"].tolist(), "logits", list(DATA["segments"])
    )
    assert again.sha256 == payload.sha256
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        assert found.files == ["logits", "labels", "segments"]
        for name, array in DATA.items():
            np.testing.assert_array_equal(found[name], array)
    assert len(content) < sum(array.nbytes for array in DATA.values()) + 2000


COLUMNS = {
    "list": ["web", "app", "web"],
    "tuple": ("web", "app", "web"),
    "numpy": np.array(["web", "app", "web"]),
    "objects": np.array(["web", "app", "web"], object),
    "pandas": pd.Series(["web", "app", "web"], index=[7, 8, 9]),
    "pandas text": pd.Series(["web", "app", "web"], dtype="string"),
    "categories": pd.Series(["web", "app", "web"], dtype="category"),
    "pandas' own array": pd.Categorical(["web", "app", "web"]),
    "frame": pd.DataFrame({"channel": ["web", "app", "web"]}),
    "index": pd.Index(["web", "app", "web"]),
    "polars": pl.Series(["web", "app", "web"]),
    "polars categories": pl.Series(["web", "app", "web"], dtype=pl.Categorical),
    "pyarrow": pa.array(["web", "app", "web"]),
    "chunks": pa.chunked_array([["web"], ["app", "web"]]),
    "dictionary": pa.array(["web", "app", "web"]).dictionary_encode(),
}
NUMBERS = {
    "list": [3, -1, 3],
    "numpy": np.array([3, -1, 3], np.int16),
    "torch": torch.tensor([3, -1, 3]),
    "pandas": pd.Series([3, -1, 3]),
    "polars": pl.Series([3, -1, 3]),
    "pyarrow": pa.array([3, -1, 3]),
    "numpy's in a list": [np.int64(3), np.int32(-1), 3],
}
NO_SEGMENTS = {
    "numbers with a point": np.linspace(0, 1, len(DATA["labels"])),
    "identifiers": np.arange(len(DATA["labels"])),
    "missing": ["web"] * (len(DATA["labels"]) - 1) + [None],
    "bad names": ["web"] * (len(DATA["labels"]) - 1) + [" "],
}


@pytest.mark.parametrize("case", COLUMNS)
def test_names_of_any_library(case: str) -> None:
    segments = Segments.of(as_segments(COLUMNS[case]))
    assert [segments.names[one] for one in segments.codes] == ["web", "app", "web"]


@pytest.mark.parametrize("values", ["a", b"a", {"a", "b"}, 3, (one for one in "ab")])
def test_segments_that_are_not_a_list_are_refused(values: Any) -> None:
    with pytest.raises(DataError, match="segments must be a list, an array or a column") as caught:
        calibrd.fit_local([[1.0, 0.0], [0.0, 1.0]], [0, 1], segments=values, progress=False)
    assert caught.value.code == "bad_segments"


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_of_any_library(case: str) -> None:
    found = as_segments(NUMBERS[case])
    assert (found.tolist(), found.dtype.kind) == ([3, -1, 3], "i")


@pytest.mark.parametrize(
    "values",
    [
        ["web", 1, "app"],
        [1, True, 2],
        pd.Series(["web", None, "app"]),
        pd.Series(["web", pd.NA, "app"], dtype="string"),
        pl.Series(["web", None, "app"]),
        pa.array(["web", None, "app"]),
        pa.array([1, None, 2]),
        pd.Categorical(["web", None, "app"]),
    ],
    ids=str,
)
def test_cells_that_are_no_names_are_named_by_their_row(values: Any) -> None:
    with pytest.raises(DataError, match="segments must be all strings or all integers") as caught:
        as_segments(values)
    assert (caught.value.code, caught.value.rows, caught.value.first) == ("bad_segments", 1, 1)


def files(
    folder: Path, rows: dict[str, np.ndarray] = DATA, *, segments: str = "segments"
) -> list[Path]:
    """Return the rows as npz, parquet and arrow, with ``segments`` under another name if given."""
    packed_file, parquet, arrow = (folder / f"set.{end}" for end in ("npz", "parquet", "arrow"))
    np.savez(
        packed_file, logits=rows["logits"], labels=rows["labels"], **{segments: rows["segments"]}
    )
    table = pa.table(
        {"logits": list(rows["logits"]), "labels": rows["labels"], segments: rows["segments"]}
    )
    pq.write_table(table, parquet)
    with pa.ipc.new_file(arrow, table.schema) as writer:
        writer.write_table(table)
    return [packed_file, parquet, arrow]


@pytest.mark.parametrize("name", ["segments", "segment", "channel"])
def test_the_command_line_takes_segments_from_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    fitted = tmp_path / "map.calibrd"
    flags = ["--segments-column", name] if name == "channel" else []
    expected = Segmented().fit(SET)
    for path in files(tmp_path, segments=name):
        asked = ["fit", str(path), "--method", "segmented", "--out", str(fitted), "--force"]
        assert run([*asked, *flags]) == 0
        found = archive.load(fitted.read_bytes())
        np.testing.assert_array_equal(found.temperatures, expected.temperatures)
        target = tmp_path / f"out{path.suffix}"
        assert run(["apply", str(path), str(target), "--map", str(fitted), *flags]) == 0
        np.testing.assert_array_equal(
            probabilities_in(target), expected.apply(DATA["logits"], DATA["segments"])
        )
    capsys.readouterr()
    new_rows = rows_of_segments(seed=6)
    (tmp_path / "new").mkdir()
    new_file = files(tmp_path / "new", new_rows, segments=name)[-1]
    gate = ["gate", str(new_file), "--map", str(fitted), "--max-ece", "0.5", "--json"]
    assert run([*gate, *flags]) == 0
    judged = json.loads(capsys.readouterr().out)
    by_segment = evaluate(
        expected.apply_set(CalibrationSet(**new_rows)), new_rows["labels"]
    ).metrics["ece"]
    assert judged["ece"]["value"] == pytest.approx(by_segment)


def probabilities_in(path: Path) -> np.ndarray:
    if path.suffix == ".npz":
        with np.load(path) as found:
            return found["probabilities"]
    table = pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()
    return np.stack(table["probabilities"].to_numpy())


def test_fits_of_files_on_the_service_have_segments(
    service: Running, client: calibrd.Client, tmp_path: Path
) -> None:
    path = files(tmp_path)[1]
    asked = ["fit", str(path), "--name", "sdk-file", "--method", "segmented"]
    assert run([*asked, "--url", service.url]) == 0
    assert client.load("sdk-file@1", refresh=None).map.segments == ("app", "web")


def test_a_file_without_the_named_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "map.calibrd")]
    for path in files(tmp_path):
        assert run(["fit", str(path), "--segments-column", "country", *out]) == 3
        expected = "must have exactly one array or column named 'country', but has"
        assert expected in capsys.readouterr().err


def test_integers_of_all_64_bits() -> None:
    assert Segments.of(as_segments([-1, 2**64 - 1])).names == ("-1", str(2**64 - 1))


def with_no_segments(folder: Path, case: str) -> list[Path]:
    """Return files whose column ``segment`` is invalid: parquet, and npz (pickled if necessary)."""
    rows = {"logits": DATA["logits"], "labels": DATA["labels"]}
    packed_file, parquet = folder / "odd.npz", folder / "odd.parquet"
    np.savez(packed_file, **rows, segment=np.asarray(NO_SEGMENTS[case]))
    table = {**rows, "logits": list(DATA["logits"]), "segment": NO_SEGMENTS[case]}
    pq.write_table(pa.table(table), parquet)
    return [packed_file, parquet]


@pytest.mark.parametrize("case", NO_SEGMENTS)
def test_a_column_that_names_no_segments_does_not_stop_a_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    target = tmp_path / "map.calibrd"
    for path in with_no_segments(tmp_path, case):
        asked = ["fit", str(path), "--out", str(target), "--force", "--method"]
        assert run([*asked, "temperature"]) == 0
        told = capsys.readouterr()
        assert "warning: 'segment' does not contain valid segments and is ignored" in told.err
        assert str(path) in told.err
        assert "segment" not in told.out
        assert run([*asked, "temperature", "--segments-column", "segment"]) == 3
        assert "error: " in capsys.readouterr().err
        assert run([*asked, "segmented"]) == 3
        assert "'segment' does not contain valid segments" in capsys.readouterr().err


@pytest.mark.parametrize("case", NO_SEGMENTS)
def test_a_checked_set_is_without_segments_only_where_none_are_needed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    for path in with_no_segments(tmp_path, case):
        found = read_set(path)
        assert found.segments is None
        assert found.left_out is not None
        assert str(found.left_out) in caplog.text
        with pytest.raises(DataError) as caught:
            found.for_segments(True)
        assert caught.value is found.left_out
        assert found.for_segments(False).checked().segments is None


def test_batches_and_blocks_take_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = Segmented().fit(SET)
    expected = fitted.apply(DATA["logits"], DATA["segments"])
    batch = {"logits": DATA["logits"], "channel": DATA["segments"]}
    found = BatchApply(fitted, segments="channel")(batch)
    np.testing.assert_array_equal(found["probabilities"], expected)
    monkeypatch.setattr("calibrd.io.row_blocks.BLOCK_VALUES", 70)
    for path in files(tmp_path):
        target = tmp_path / f"out{path.suffix}"
        apply_file(fitted, path, target, progress=False)
        np.testing.assert_array_equal(probabilities_in(target), expected)
    short = tmp_path / "short.npz"
    np.savez(short, logits=DATA["logits"], segments=DATA["segments"][1:])
    with pytest.raises(DataError, match="2400 rows but 2399 segments"):
        apply_file(fitted, short, tmp_path / "none.npz", progress=False)


def test_the_row_that_has_no_segment_is_named_by_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [*DATA["segments"]]
    names[5] = None
    path = tmp_path / "null.parquet"
    rows = {"logits": list(DATA["logits"]), "labels": DATA["labels"], "segments": names}
    pq.write_table(pa.table(rows), path)
    out = ["--out", str(tmp_path / "map.calibrd")]
    assert run(["fit", str(path), "--method", "segmented", *out]) == 3
    printed = capsys.readouterr().err
    assert "a name such as 'other' for rows that have no segment (first invalid row: 5, " in printed


def test_names_as_objects_are_to_be_saved_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, fitted = tmp_path / "objects.npz", tmp_path / "map.calibrd"
    np.savez(path, **{**DATA, "segments": DATA["segments"].astype(object)})
    assert run(["fit", str(path), "--method", "segmented", "--out", str(fitted)]) == 3
    assert "save segments.astype(str)" in capsys.readouterr().err
    fitted.write_bytes(archive.dump(Segmented().fit(SET)))
    assert run(["apply", str(path), str(tmp_path / "out.npz"), "--map", str(fitted)]) == 3
    assert "segments.astype(str)" in capsys.readouterr().err


def test_missing_segments_error_explains_how_to_pass_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FitError, match="needs the segment of each row: pass segments="):
        calibrd.fit_local(DATA["logits"], DATA["labels"], method="segmented", progress=False)
    path = tmp_path / "plain.npz"
    np.savez(path, logits=DATA["logits"], labels=DATA["labels"])
    for end in (["--out", str(tmp_path / "map.calibrd")], ["--name", "m"]):
        assert run(["fit", str(path), "--method", "segmented", *end]) == 3
        printed = capsys.readouterr().err
        assert f"needs the segment of each row, but {path} has no 'segments'" in printed
        assert "--segments-column" in printed
    assert "--segments-column" in ERROR_CODES["missing_segments"].hint


@pytest.mark.parametrize(
    ("segments", "known"),
    [
        (None, "0"),
        (np.full(2400, "nowhere"), "0"),
        (np.where(np.arange(2400) < 100, "nowhere", DATA["segments"]), "2,300"),
        (DATA["segments"], None),
    ],
    ids=["none", "unknown", "some", "all"],
)
def test_rows_of_no_segment_of_the_map_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], segments: Any, known: str | None
) -> None:
    fitted, path = tmp_path / "map.calibrd", tmp_path / "rows.npz"
    fitted.write_bytes(archive.dump(Segmented().fit(SET)))
    named = {} if segments is None else {"segments": segments}
    np.savez(path, logits=DATA["logits"], labels=DATA["labels"], **named)
    note = (
        f"{known} of 2,400 rows belong to a segment of this map; the others use the map fitted on"
    )
    for asked in (
        ["gate", str(path), "--map", str(fitted), "--max-ece", "0.5"],
        ["apply", str(path), str(tmp_path / "out.npz"), "--map", str(fitted), "--force"],
    ):
        assert run(asked) == 0
        printed = capsys.readouterr().err
        assert (note in printed) if known else ("in a segment" not in printed)
        assert run([*asked, "--quiet", "--json"]) == 0
        quiet = capsys.readouterr()
        assert "in a segment" not in quiet.err
        counted = json.loads(quiet.out)["rows_in_segments"]
        assert counted == (2400 if known is None else int(known.replace(",", "")))


def test_a_map_without_segments_prints_no_note(tmp_path: Path) -> None:
    path = files(tmp_path)[0]
    plain = Segmented().fit(SET).base
    assert apply_file(plain, path, tmp_path / "out.npz", progress=False).in_segments is None


def test_the_service_names_the_method_that_needs_segments(client: calibrd.Client) -> None:
    assert [one.name for one in client.methods() if one.needs_segments] == ["segmented"]
