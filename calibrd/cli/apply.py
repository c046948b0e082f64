"""``calibrd apply``."""

from __future__ import annotations

from calibrd.batch import apply_file
from calibrd.cli.context import (
    AddCommand,
    CommandContext,
    add_map_flags,
    add_rows_flags,
    note_segments,
)


def add_to(add_command: AddCommand) -> None:
    """Add the command."""
    parser = add_command(
        "apply", apply, "apply a map locally to a file of any size, in constant memory"
    )
    parser.add_argument("source", metavar="IN", help=".npy, .npz, .parquet or .arrow")
    parser.add_argument("target", metavar="OUT", help="same formats; written atomically")
    add_map_flags(parser)
    parser.add_argument(
        "--dtype",
        choices=["float32", "float64"],
        help="precision of the computation and the output [same as IN]",
    )
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    add_rows_flags(parser, labelled=False)
    out = parser.add_argument_group("output")
    out.add_argument(
        "--output-column",
        default="probabilities",
        metavar="NAME",
        help="name of the output array or column; not used for .npy [probabilities]",
    )
    out.add_argument(
        "--columns-out",
        action="store_true",
        help="write one column per class in tables: probabilities_0, ...",
    )
    out.add_argument(
        "--predictions",
        action="store_true",
        help="add prediction and confidence columns to tables",
    )
    out.add_argument("--drop-inputs", action="store_true", help="leave out the input columns")


def apply(context: CommandContext) -> None:
    """Apply a map to a file."""
    flags, columns = context.flags, context.columns
    used = context.map()
    context.output.note(f"applying {used.description} to {flags.source}")
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
        progress=context.output.bars,
    )
    if done.in_segments is not None:
        note_segments(context, done.in_segments, done.rows)
    document = {
        "file": str(done.target),
        "rows": done.rows,
        "classes": done.classes,
        "rows_in_segments": done.in_segments,
        "map": used.facts,
    }
    size = f"{done.rows:,} rows of {done.classes} probabilities"
    context.output.answer(document, f"{done.target}: {size}, calibrated by {used.description}")
