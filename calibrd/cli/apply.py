"""``calibrd apply``."""

from __future__ import annotations

from calibrd.batch import apply_file
from calibrd.cli.context import CommandContext, Verb, add_map_flags, add_rows_flags, note_segments


def add_to(verb: Verb) -> None:
    """Add the command."""
    applying = verb("apply", apply, "apply a map to a file of any size, here, in constant memory")
    applying.add_argument("source", metavar="IN", help=".npy, .npz, .parquet or .arrow")
    applying.add_argument("target", metavar="OUT", help="likewise; appears when it is whole")
    add_map_flags(applying)
    applying.add_argument(
        "--dtype", choices=["float32", "float64"], help="to calculate and answer in [as IN]"
    )
    applying.add_argument("--force", action="store_true", help="replace OUT if it is there")
    add_rows_flags(applying, labelled=False)
    out = applying.add_argument_group("what the target gets")
    out.add_argument(
        "--output-column",
        default="probabilities",
        metavar="NAME",
        help="of the probabilities; an .npy has no names [probabilities]",
    )
    out.add_argument(
        "--columns-out",
        action="store_true",
        help="in tables a column for each class: probabilities_0, ...",
    )
    out.add_argument(
        "--predictions", action="store_true", help="in tables also prediction and confidence"
    )
    out.add_argument("--drop-inputs", action="store_true", help="leave out what was read")


def apply(asked: CommandContext) -> None:
    """Apply a map to a file."""
    flags, columns = asked.flags, asked.columns
    used = asked.map()
    asked.output.note(f"applying {used.words} to {flags.source}")
    done = apply_file(
        used.fitted,
        flags.source,
        flags.target,
        columns=columns,
        output=flags.output_column,
        dtype=flags.dtype,
        predictions=flags.predictions,
        one_column_each=flags.columns_out,
        drop_inputs=flags.drop_inputs,
        segments=flags.segments_column,
        force=flags.force,
        progress=asked.output.bars,
    )
    if done.in_segments is not None:
        note_segments(asked, done.in_segments, done.rows)
    document = {
        "file": str(done.target),
        "rows": done.rows,
        "classes": done.classes,
        "rows_in_segments": done.in_segments,
        "map": used.facts,
    }
    words = f"{done.target}: {done.rows:,} rows of {done.classes} probabilities by {used.words}"
    asked.output.answer(document, words)
