"""Maps applied to files: all formats, equal probabilities, constant memory, atomic output."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from helpers.live_service import sample
from pyarrow import parquet

from calibrators import DataError, archive
from calibrators.methods.temperature import TemperatureMap
from calibrd.batch import BatchApply, apply_file
from calibrd.cli.arguments import run
from calibrd.io import parquet_files, row_blocks

LOGITS, LABELS = sample()
FITTED = TemperatureMap(k=5, temperature=3.0)
RIGHT = FITTED.apply(LOGITS)


def arrow(path: Path, table: Any) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=70)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use many blocks, the last of which is shorter."""
    monkeypatch.setattr(row_blocks, "BLOCK_VALUES", 5 * 64)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "in.npy", LOGITS)
    np.save(tmp_path / "turned.npy", np.asfortranarray(LOGITS))
    np.savez_compressed(tmp_path / "in.npz", logits=LOGITS, labels=LABELS)
    names = {f"z{one}": LOGITS[:, one] for one in range(5)}
    table = pa.table({"id": [f"row {n}" for n in range(600)], "logits": [*LOGITS], **names})
    table = table.replace_schema_metadata({"made by": "a test"})
    parquet.write_table(table, tmp_path / "in.parquet", row_group_size=100)
    arrow(tmp_path / "in.arrow", table)
    return tmp_path


def read(path: Path) -> Any:
    match path.suffix:
        case ".npy":
            return np.load(path)
        case ".npz":
            with np.load(path) as stored:
                return stored["probabilities"]
        case ".parquet":
            table = parquet.read_table(path)
        case _:
            table = pa.ipc.open_file(path).read_all()
    assert table.schema.field("probabilities").type == pa.list_(pa.float32(), 5)
    return np.array(table["probabilities"].to_pylist(), dtype=np.float32)


@pytest.mark.parametrize("end", [".npy", ".npz", ".parquet", ".arrow"])
@pytest.mark.parametrize("start", ["in.npy", "turned.npy", "in.npz", "in.parquet", "in.arrow"])
def test_every_format_gives_the_results_of_the_map(folder: Path, start: str, end: str) -> None:
    done = apply_file(FITTED, folder / start, folder / f"out{end}", progress=False)
    assert done == (folder / f"out{end}", 600, 5, None)
    np.testing.assert_array_equal(read(done.target), RIGHT)
    assert not [path for path in folder.iterdir() if path.suffix == ".part"]


def test_other_columns_and_arrays_are_kept(folder: Path) -> None:
    target = folder / "out.parquet"
    apply_file(FITTED, folder / "in.parquet", target, progress=False)
    before, after = parquet.read_table(folder / "in.parquet"), parquet.read_table(target)
    assert after.drop(["probabilities"]).equals(before)
    assert after.schema.metadata[b"made by"] == b"a test"
    apply_file(FITTED, folder / "in.npz", folder / "out.npz", drop_inputs=True, progress=False)
    with np.load(folder / "out.npz") as stored:
        assert sorted(stored) == ["labels", "probabilities"]
        np.testing.assert_array_equal(stored["labels"], LABELS)


def test_columns_for_each_class_with_predictions(folder: Path) -> None:
    target = folder / "out.parquet"
    apply_file(
        FITTED,
        folder / "in.arrow",
        target,
        columns=[f"z{one}" for one in range(5)],
        output="p",
        dtype="float64",
        predictions=True,
        one_column_each=True,
        drop_inputs=True,
        progress=False,
    )
    table = parquet.read_table(target)
    names = ["id", "logits", *(f"p_{one}" for one in range(5)), "prediction", "confidence"]
    assert table.column_names == names
    assert table.schema.field("p_0").type == pa.float64()
    np.testing.assert_allclose(table["p_3"].to_numpy(), RIGHT[:, 3], atol=1e-6)
    np.testing.assert_array_equal(table["prediction"].to_numpy(), RIGHT.argmax(axis=1))


def test_a_map_of_probabilities_reads_those(folder: Path) -> None:
    fitted = TemperatureMap(k=5, temperature=3.0, kind="probabilities")
    np.savez(folder / "p.npz", probabilities=RIGHT, labels=LABELS)
    parquet.write_table(pa.table({"probabilities": [*RIGHT]}), folder / "p.parquet")
    for name in ("p.npz", "p.parquet"):
        target = folder / f"out{Path(name).suffix}"
        with pytest.raises(DataError, match=r"already has 'probabilities'.*--output-column"):
            apply_file(fitted, folder / name, target, progress=False)
        apply_file(fitted, folder / name, target, drop_inputs=True, progress=False)
        np.testing.assert_array_equal(read(target), fitted.apply(RIGHT))
    apply_file(fitted, folder / "p.npz", folder / "c.npz", output="calibrated", progress=False)
    with np.load(folder / "c.npz") as stored:
        assert [*stored] == ["calibrated", "probabilities", "labels"]
        np.testing.assert_array_equal(stored["probabilities"], RIGHT)
        np.testing.assert_array_equal(stored["calibrated"], fitted.apply(RIGHT))
    with pytest.raises(DataError, match="already has 'probabilities'"):
        BatchApply(fitted)({"probabilities": RIGHT})
    with pytest.raises(
        DataError, match="must contain an array named 'probabilities', but contains 'logits'"
    ):
        apply_file(fitted, folder / "in.npz", folder / "other.npz", progress=False)


def broken_rows(folder: Path) -> None:
    nan = LOGITS.copy()
    nan[301, 2] = np.nan
    np.save(folder / "nan.npy", nan)
    lists = [row.tolist() for row in LOGITS]
    cases: dict[str, Any] = {
        "null": [*lists[:402], None, *lists[403:]],
        "inner": [*lists[:402], [None, *lists[402][1:]], *lists[403:]],
        "ragged": [*lists[:402], lists[402][:3], *lists[403:]],
        "text": ["text"] * 600,
    }
    for name, rows in cases.items():
        parquet.write_table(pa.table({"logits": rows}), folder / f"{name}.parquet")
    parquet.write_table(pa.table({"logits": [*nan]}), folder / "nan.parquet")
    parquet.write_table(pa.table({"logits": [*LOGITS[:0]]}), folder / "empty.parquet")
    content = bytearray((folder / "in.arrow").read_bytes())
    heads = [one.start() for one in re.finditer(b"\xff\xff\xff\xff", content)]
    content[heads[4] + 8 : heads[4] + 24] = b"?" * 16  # that of a batch
    (folder / "damaged.arrow").write_bytes(content)
    (folder / "cut.npy").write_bytes((folder / "in.npy").read_bytes()[:-8])
    (folder / "damaged.parquet").write_bytes((folder / "in.parquet").read_bytes()[:-50])
    np.save(folder / "pickled.npy", np.array([{}, {}]))
    np.save(folder / "wide.npy", np.zeros((4, 7)))
    (folder / "text.npy").write_text("text")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nan.npy", "logits must not be NaN .first invalid row: 301,"),
        ("nan.parquet", "logits must not be NaN .first invalid row: 301,"),
        ("null.parquet", "missing values .first invalid row: 402,"),
        ("inner.parquet", "missing values .first invalid row: 402,"),
        ("ragged.parquet", "same number of values in every row"),
        ("text.parquet", "must be numbers, got text such as 'text'"),
        ("empty.parquet", "contains no rows"),
        ("cut.npy", "cut.npy is truncated: it ends after 576 rows"),
        ("damaged.parquet", "is not a valid parquet file"),
        ("damaged.arrow", "is damaged: "),
        ("pickled.npy", "contains pickled objects"),
        ("wide.npy", "fitted on 5 classes, got 7 columns"),
        ("text.npy", "is not a valid numpy array"),
    ],
)
def test_invalid_input_is_named_and_leaves_nothing(folder: Path, name: str, said: str) -> None:
    broken_rows(folder)
    before = {*folder.iterdir()}
    for end in (".npy", ".parquet"):
        with pytest.raises(DataError, match="(?i)" + said.replace("(", r"\(")) as caught:
            apply_file(FITTED, folder / name, folder / f"out{end}", progress=False)
        assert name in str(caught.value)
    assert {*folder.iterdir()} == before


def test_large_batches_are_mapped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "LARGE_BATCH_BYTES", 100)
    apply_file(FITTED, folder / "in.arrow", folder / "out.npy", progress=False)
    np.testing.assert_array_equal(np.load(folder / "out.npy"), RIGHT)


def test_columns_must_exist_and_be_unused(folder: Path) -> None:
    with pytest.raises(
        DataError, match="exactly one column named 'nothing', but has 'id', 'logits'"
    ):
        apply_file(FITTED, folder / "in.parquet", folder / "o.parquet", columns="nothing")
    with pytest.raises(DataError, match="already has 'id': choose another"):
        apply_file(FITTED, folder / "in.parquet", folder / "o.parquet", output="id", progress=False)
    with pytest.raises(DataError, match="has no columns to choose from"):
        apply_file(FITTED, folder / "in.npy", folder / "o.npy", columns="logits")
    with pytest.raises(DataError, match="require a table as the target"):
        apply_file(FITTED, folder / "in.npy", folder / "o.npy", predictions=True, progress=False)
    assert not [*folder.glob("*o.*")]


def test_existing_files_are_replaced_only_by_force(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "m.calibrd").write_bytes(archive.dump(FITTED))
    words = [str(folder / "in.npy"), str(folder / "in.npz"), "--map", str(folder / "m.calibrd")]
    assert run(["apply", *words]) == 3
    assert "already exists" in capsys.readouterr().err
    assert run(["apply", *words, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 600
    np.testing.assert_array_equal(read(folder / "in.npz"), RIGHT)


@pytest.mark.parametrize("columns", ["logits", [f"z{one}" for one in range(5)]])
def test_the_callable_travels_and_adds_columns(columns: Any) -> None:
    apply = pickle.loads(pickle.dumps(BatchApply(FITTED, columns, predictions=True)))  # noqa: S301
    batch = {"id": np.arange(600), "logits": LOGITS, **{f"z{n}": LOGITS[:, n] for n in range(5)}}
    answer = apply(batch)
    assert [*answer] == [*batch, "probabilities", "prediction", "confidence"]
    np.testing.assert_array_equal(answer["probabilities"], RIGHT)


def test_a_block_is_bounded_by_numbers_whatever_the_type(folder: Path) -> None:
    """Copied columns count too, even if only later rows have much data in them."""
    wide = np.zeros((50, 400), np.float32)
    rows = [[0.0]] * 40 + [*wide[:10]]
    table = pa.table(
        {"logits": [*LOGITS[:50]], "embedding": pa.array(rows, pa.list_(pa.float32()))}
    )
    parquet.write_table(table, folder / "late.parquet", row_group_size=25, use_dictionary=False)
    for name, most in (("in.parquet", 64), ("in.arrow", 64), ("late.parquet", 4)):
        with parquet_files.open_table(folder / name) as opened:
            lengths = [len(batch) for batch in opened.batches(5 * 64)]
            assert sum(lengths) == opened.rows
        assert 1 <= max(lengths) <= most


MEASURED = """
import re, sys
from pathlib import Path
from calibrators.methods.temperature import TemperatureMap
from calibrd.io import row_blocks
from calibrd.batch import apply_file
row_blocks.BLOCK_VALUES = 1 << 18  # of which the smaller file has several
fitted = TemperatureMap(k=int(sys.argv[1]), temperature=3.0)
def peak():  # ru_maxrss would be that of the process which started this one
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10
apply_file(fitted, sys.argv[2], sys.argv[3], progress=False)
before = peak()
done = apply_file(fitted, sys.argv[4], sys.argv[5], progress=False)
print(before, peak(), done.rows)
"""


@pytest.mark.parametrize(
    ("ending", "k", "lists"),
    [(".npy", 10, None), (".parquet", 1000, pa.list_(pa.float32())), (".arrow", 10, 10)],
)
def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, ending: str, k: int, lists: Any
) -> None:
    """A file ten times as large, of 40 MB, takes little more memory."""
    small, large = (tmp_path / f"{name}{ending}" for name in ("small", "large"))
    block = np.random.default_rng(0).normal(size=(1_000_000 // k, k)).astype(np.float32)
    if ending == ".npy":
        np.save(small, block)
        np.save(large, np.tile(block, (10, 1)))
    else:
        rows = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), k)
        table = pa.table({"logits": rows if lists == k else rows.cast(lists)})
        for path, times in ((small, 1), (large, 10)):
            with parquet_files.new_table(path, ending, table.schema) as writer:
                for _ in range(times):
                    writer.write_table(table)
    first, second = (tmp_path / f"out{one}{ending}" for one in range(2))
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(k), small, first, large, second],
        capture_output=True,
        text=True,
        check=True,
    )
    before, after, count = map(int, done.stdout.split())
    size = large.stat().st_size >> 20
    assert (size > 35, count) == (True, 10 * len(block))
    assert 20 < before < 400
    assert after - before < size / 2, (before, after)


@pytest.mark.parametrize("end", [".arrow", ".parquet"])
def test_row_groups_with_dictionaries_of_their_own(tmp_path: Path, end: str) -> None:
    words = [f"word {n // 100}" for n in range(600)]
    groups = [
        pa.table(
            {"id": pa.array(words[at:][:100]).dictionary_encode(), "logits": [*LOGITS[at:][:100]]}
        )
        for at in range(0, 600, 100)
    ]
    path = tmp_path / "in.parquet"
    with parquet.ParquetWriter(path, groups[0].schema) as writer:
        for group in groups:
            writer.write_table(group)
    done = apply_file(FITTED, path, tmp_path / f"out{end}", progress=False)
    np.testing.assert_array_equal(read(done.target), RIGHT)
    opened = parquet.read_table if end == ".parquet" else lambda at: pa.ipc.open_file(at).read_all()
    kept = opened(done.target)
    assert kept["id"].to_pylist() == words


def test_dictionaries_within_lists_and_structs(tmp_path: Path) -> None:
    column = pa.array(["a", "b", "a"]).dictionary_encode()
    pair = pa.StructArray.from_arrays([column], ["of"])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3, 3], pa.int32()), pair)
    batch = pa.record_batch({"pair": pair, "lists": lists, "n": [1, 2, 3]})
    plain = parquet_files.without_dictionaries(batch)
    assert plain.to_pylist() == batch.to_pylist()
    assert "dictionary" not in str(plain.schema)
    path = tmp_path / "in.parquet"
    held = {"logits": [*LOGITS], "lists": pa.array([["a"]] * 300 + [["b"]] * 300)}
    kinds = {"logits": pa.list_(pa.float32()), "lists": pa.list_(column.type)}
    table = pa.table(held).cast(pa.schema(kinds))
    parquet.write_table(table, path, row_group_size=100)
    with pytest.raises(DataError, match="pyarrow cannot read"):
        apply_file(FITTED, path, tmp_path / "out.arrow", progress=False)


def test_a_column_that_exists_twice_or_is_named_twice(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    columns = [pa.array([*LOGITS]), pa.array(LABELS), pa.array(LABELS)]
    parquet.write_table(pa.table(columns, names=["logits", "x", "x"]), path)
    with pytest.raises(DataError, match="more than one column 'x'"):
        apply_file(FITTED, path, tmp_path / "out.arrow", progress=False)
    done = apply_file(FITTED, path, tmp_path / "out.npy", progress=False)
    np.testing.assert_array_equal(read(done.target), RIGHT)
    with pytest.raises(DataError, match="'a' is named twice"):
        apply_file(FITTED, path, tmp_path / "two.npy", columns=["a", "a"], progress=False)
    with pytest.raises(DataError, match="'a' is named twice"):
        BatchApply(FITTED, columns=["a", "a"])


def test_predictions_do_not_replace_probabilities() -> None:
    fitted = TemperatureMap(k=3, temperature=2.0)
    with pytest.raises(DataError, match="'confidence' is reserved for predictions"):
        BatchApply(fitted, output="confidence", predictions=True)
    found = BatchApply(fitted, predictions=True)({"logits": np.eye(3)})
    assert found["prediction"].tolist() == [0, 1, 2]
