"""What a person can do about a refusal, by its code: shown beside the sentence that tells it."""

from __future__ import annotations

SAVE = "np.savez('data.npz', logits=logits, labels=labels)"

_NOT_READ = f"Save the file again, such as by {SAVE}, and see that all of it is copied."
_NAMES = f"Give the arrays their names: {SAVE}, or probabilities= in place of logits=."
_COLUMNS = (
    "Name the columns logit_0, logit_1, … (or p_0, p_1, …), label and, if rows have one, segment, "
    "and leave others out."
)
_NUMBERS = "Correct that line, or leave the row out."
_ROWS = "Leave these rows out, or find out why the model gave them."
_PROBABILITIES = (
    "If these are logits, call them logits; if they are probabilities, see that rows sum to 1."
)
_SLOW = "The line is slow: calibrd's client sends in parts, and goes on where it broke off."
_AGAIN = "Upload the data again with a new fit."
_SMALLER = "Fit on fewer rows (a few thousand do for most methods), or with fewer methods."

ADVICE = {
    "empty_body": _NOT_READ,
    "truncated_body": _NOT_READ,
    "trailing_bytes": _NOT_READ,
    "bad_header": _NOT_READ,
    "bad_offsets": _NOT_READ,
    "bad_zip": _NOT_READ,
    "bad_compression": _NOT_READ,
    "bad_type": "Convert the values to float32 and the labels to int64.",
    "unknown_array": f"{_NAMES} In CSV, leave out all columns but classes, label and segment.",
    "logits_or_probabilities": _NAMES,
    "no_labels": f"{_NAMES} In CSV, call one column label.",
    "bad_columns": _COLUMNS,
    "malformed_csv": "Save it as UTF-8 text with commas, and a first line that names the columns.",
    "ragged": _NUMBERS,
    "not_a_number": _NUMBERS,
    "duplicate_names": _COLUMNS,
    "nan": _ROWS,
    "infinite": _ROWS,
    "no_finite_logit": _ROWS,
    "label_on_minus_infinity": _ROWS,
    "label_out_of_range": "Labels count from 0: subtract 1 if yours begin at 1, "
    "and see that there is a column for every class.",
    "labels_not_integers": "Convert the labels: labels.astype('int64').",
    "bad_label_shape": "Give one label a row; of one-hot rows, that is labels.argmax(axis=1).",
    "length_mismatch": "See that both come from the same rows, in the same order.",
    "missing_segments": "Add the segment of each row: np.savez('data.npz', logits=logits, "
    "labels=labels, segments=segments), or a column segment in CSV.",
    "bad_segments": "Give segments as text or as whole numbers, one a row, and call rows without "
    "a segment 'other'; of an array of objects, as pandas gives it, save segments.astype(str).",
    "bad_segment_name": "Give every row's segment a short name; call those without one 'other'.",
    "segments_length": "See that all come from the same rows, in the same order.",
    "too_many_segments": "Name something that many rows share, such as a country or a channel.",
    "not_a_probability": _PROBABILITIES,
    "rows_do_not_sum_to_one": _PROBABILITIES,
    "wrong_kind": "Choose what the file's own names say.",
    "too_few_rows": "Fit on more rows.",
    "too_much_memory": _SMALLER,
    "too_many_classes": "Whoever runs the service sets the limit: max_classes.",
    "body_too_large": "Send fewer rows, or float16; a CSV file is far smaller as npz.",
    "body_too_slow": _SLOW,
    "body_timeout": _SLOW,
    "no_space": "Whoever runs the service has to make room.",
    "evaluation_is_the_dataset": "Choose another file to judge on, or none.",
    "evaluation_differs": "Choose a file of the same model's output to judge on.",
    "bad_name": "Use small letters, digits, '.', '_' and '-'.",
    "missing_scope": "Sign in with a key that has this scope.",
    "key_required": "Sign in again: the session has ended.",
    "key_has_ended": "Sign in with another key; this page can stay open in its tab meanwhile.",
    "foreign_origin": "Reload the page: the session has changed since it was opened.",
    "dataset_gone": _AGAIN,
    "blob_missing": _AGAIN,
    "blob_corrupt": _AGAIN,
    "out_of_memory": _SMALLER,
    "worker_lost": _SMALLER,
    "time_limit": _SMALLER,
    "torch_missing": "Whoever runs the worker has to install torch, or run it with `--device cpu`.",
    "device_unavailable": "Order it again: the worker's device has changed.",
    "internal_error": "Tell whoever runs the service; the log of that time says more.",
    "paused_too_long": "Order the fit again.",
}
