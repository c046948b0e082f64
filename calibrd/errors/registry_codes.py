"""Codes about fits, versions, aliases and predictions."""

from __future__ import annotations

from calibrd.errors.kinds import Conflict, Invalid, NotFound, Stale, Unavailable


class NoSuchCalibrator(NotFound):
    """There is no such calibrator."""

    hint = "client.calibrators() lists them; client.fit(name, ...) makes one"


class NoSuchVersion(NotFound):
    """The calibrator has no such version."""

    hint = "client.versions(name) lists them"


class NoSuchAlias(NotFound, Stale):
    """The calibrator has no such alias."""

    hint = "client.promote(name, version, alias=...) makes one; name@3 names a version without"


class NoSuchFit(NotFound):
    """There is no such fit."""

    hint = "client.fits() lists them"


class NoReport(NotFound):
    """The version was registered without a report."""


class NoOnnx(NotFound):
    """The version has no ONNX form."""

    hint = "client.load(ref) applies it without"


class NeedsForce(Conflict):
    """The version was judged worse, or not judged, or takes other input than the one before."""

    hint = (
        "client.report(ref) says why; promote(..., force=True, reason='...') does it all the same"
    )


class AliasHasMoved(Stale):
    """Somebody moved the alias since it was last seen."""

    hint = "client.get_alias and client.history say where it is now; give its revision as expected="


class TooManyAliases(Conflict):
    """The calibrator has as many aliases as it may have."""

    hint = "move one that there is; name@3 names a version without an alias"


class NothingToRollBack(Conflict):
    """The alias has no earlier version."""

    hint = "client.history(name) lists its moves; client.promote names a version"


class ModelMismatch(Conflict):
    """The version was fitted for another model."""

    hint = "apply the map of the model that runs here, or promote a version fitted for it"


class TwoModels(Invalid):
    """The model is named twice, and differently."""


class BadModel(Invalid):
    """A model's fingerprint is one short line of text."""


class BadName(Invalid):
    """The name breaks the rule for names."""

    hint = "1 to 64 letters a-z, digits, '.', '_' and '-'; an alias is not all digits"


class BadTag(Invalid):
    """A tag is too long, or not text."""


class TooManyTags(Invalid):
    """There are too many tags."""


class BadDescription(Invalid):
    """The description is too long, or not text."""


class BadMap(Invalid):
    """The map holds what a map of ours does not."""


class BadReason(Invalid):
    """The reason for a move is too long, or holds a NUL."""


class BadReport(Invalid):
    """The report is not what a fit gives."""

    hint = "calibrd.fit_local gives a map with its report"


class FitIsFinal(Conflict):
    """The fit is finished: there is nothing to cancel."""


class BadMethods(Invalid):
    """A fit takes at least one method, and not too many."""


class TwoMethods(Invalid):
    """The fit names its methods twice."""


class UnknownMethod(Invalid):
    """There is no such method."""

    hint = "client.methods() lists them"


class TwoSeeds(Invalid):
    """The seed is given twice, and differently."""

    hint = "give seed= and leave it out of params"


class NoDataset(Invalid):
    """The fit names no dataset."""


class TwoDatasets(Invalid):
    """The fit names a dataset and brings one."""


class TwoJudges(Invalid):
    """Both held_out and an evaluation dataset are given."""

    hint = "give one of held_out= and evaluation="


class EvaluationDiffers(Invalid):
    """The evaluation dataset has another kind or other classes."""


class EvaluationIsTheDataset(Invalid):
    """The evaluation dataset is the one that is fitted on."""

    hint = "leave out evaluation=: a part of the rows is held out"


class NoGpu(Conflict):
    """No worker with a GPU is running."""

    hint = "leave out device=, or give device='cpu'"


class SameVersion(Invalid):
    """Both versions of a comparison are the same."""


class Comparing(Unavailable):
    """The comparison is not ready yet."""

    hint = "ask again: its result is kept"


class BadJudgedRows(Invalid):
    """The judged rows of a version cannot be read."""

    hint = "send Judged.rows.dump() of the fit"
