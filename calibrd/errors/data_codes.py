"""Codes about logits, probabilities and labels, and about datasets on their way."""

from __future__ import annotations

from calibrd.errors.kinds import Conflict, Invalid, Malformed, NotFound, TooLarge


class BadShape(Invalid, Malformed):
    """Values must have the shape (n, k), (n, 1) or (n,)."""


class BadLabelShape(Invalid):
    """Labels must have the shape (n,)."""

    hint = "for one-hot rows give labels.argmax(axis=1)"


class LengthMismatch(Invalid):
    """There are more labels than rows, or fewer."""


class Empty(Invalid):
    """There is no row."""


class TooFewClasses(Invalid):
    """There is no column."""


class TooManyClasses(TooLarge):
    """More classes than the service takes."""


class UploadsTooLarge(TooLarge):
    """The open uploads of a workspace hold too many bytes."""

    hint = "commit or delete uploads that are open"


class WorkspaceFull(TooLarge):
    """The datasets and maps of a workspace take all the room it may have."""

    hint = "delete datasets that no fit needs any more, or let max_workspace_bytes be raised"


class TooManyUploads(Conflict):
    """A workspace has too many open uploads."""

    hint = "commit or delete uploads that are open"


class TooMuchMemory(TooLarge):
    """The fit would need more memory than a worker may use."""

    hint = "give fewer rows, or another method: those with a K x K matrix need the most"


class TooManyRows(TooLarge, Invalid):
    """More rows than can be judged, or counted, at once."""

    hint = "give a part of the rows, or calibrators.evaluate(client.predict(...), labels) here"


class AnswerTooLarge(TooLarge):
    """The answer would be too large."""

    hint = "client.predict with npy sends many rows in blocks"


class Masked(Invalid):
    """Masked arrays are not taken."""

    hint = "drop the masked rows first"


class LabelsNotIntegers(Invalid):
    """Labels must be class indices."""

    hint = "labels.astype(int) if they are whole numbers"


class LabelOutOfRange(Invalid):
    """A label is below 0, or not below the number of columns."""


class LabelOnMinusInfinity(Invalid):
    """The logit of a label is -inf."""


class Nan(Invalid):
    """There is a NaN among the logits."""


class Infinite(Invalid):
    """There is +inf among the logits."""


class NoFiniteLogit(Invalid):
    """A row has no finite logit."""


class NotAProbability(Invalid):
    """A probability is not in [0, 1]."""

    hint = "leave out kind='probabilities' if these are logits"


class RowsDoNotSumToOne(Invalid):
    """The probabilities of a row do not sum to 1."""


class LogitsOrProbabilities(Invalid):
    """There must be logits or probabilities, and not both."""


class NoLabels(Invalid):
    """There are no labels."""


class WrongKind(Invalid):
    """The map takes logits, and these are probabilities, or the reverse."""

    hint = "kind='probabilities' says that values are probabilities"


class WrongClasses(Invalid):
    """The map was fitted on another number of classes."""

    hint = "is this the calibrator of this model? client.get_version(ref).classes"


class AmbiguousRow(Invalid):
    """One row or many: a list of numbers does not say which."""

    hint = "give rows: [[a, b]], or [[a], [b]] for single logits"


class BadSegments(Invalid):
    """Segments are neither text nor integers, or no list of them."""

    hint = "give the name of each row's segment, or a whole number for it"


class BadSegmentName(Invalid):
    """The name of a segment is empty, too long or not printable."""


class SegmentsLength(Invalid):
    """There are not as many segments as rows."""


class TooManySegments(Invalid):
    """There are more segments than are taken."""

    hint = "is it a column of identifiers? Name something that many rows share"


class MissingSegments(Invalid):
    """The method needs the segment of each row, and the dataset has none."""

    hint = "upload the data with segments=, or name its column with --segments-column"


class NoInterval(Invalid):
    """The map has no credible interval."""

    hint = "fit the method 'additive', or 'auto' on 20 rows or more"


class NoSegments(Invalid):
    """Segments were given to a map that has none."""

    hint = "leave segments= out, or fit the method 'segmented'"


class NoSuchDataset(NotFound):
    """There is no such dataset; it may have been deleted."""

    hint = "client.datasets() lists them; upload sends it again"


class DatasetInUse(Conflict):
    """A fit that is not finished needs the dataset."""

    hint = "client.wait or client.cancel its fits first"


class DatasetNotComplete(Conflict):
    """The dataset is still being uploaded."""

    hint = "call upload with the same data: it sends what is missing"


class DatasetComplete(Conflict):
    """The dataset is complete and takes no more parts."""


class NoBodyYet(Invalid):
    """An upload in parts is opened without a body."""


class NoPresignedUploads(Conflict):
    """The service keeps its bytes in a folder: parts go through it."""


class BadPart(Invalid):
    """The number of a part is out of range, or asked for twice."""


class PartsMissing(Conflict):
    """Parts of the upload have not arrived."""

    hint = "call upload with the same data: it sends what is missing"


class PartDiffers(Conflict):
    """A part is not what it was said to be."""

    hint = "call upload with the same data: it sends that part again"


class TooManyParts(Conflict):
    """There are more parts than were said."""


class HashDiffers(Invalid):
    """The parts do not make what was said."""

    hint = "was the array changed while it was sent? upload it again"


class UploadChanged(Conflict):
    """The upload was changed by another while it was joined."""

    hint = "call upload again"
