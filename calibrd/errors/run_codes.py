"""Codes about training runs."""

from __future__ import annotations

from calibrd.errors.kinds import Conflict, Invalid, NotFound


class NoSuchRun(NotFound):
    """There is no such run."""

    hint = "client.runs() lists them; client.open_run(name) makes one"


class NoSuchSession(NotFound):
    """The run has no such session."""

    hint = "client.get_run(name).sessions lists them; client.open_run(name) makes one"


class RunDiffers(Conflict):
    """The run is of another kind, or has other settings."""

    hint = "go on with the run's own settings (client.get_run(name)), or take another name"


class RunArchived(Conflict):
    """The run is archived and takes no new sessions."""

    hint = "client.update_run(name, archived=False) opens it again; or take another name"


class TooManySessions(Conflict):
    """The run has as many sessions as it may."""

    hint = "go on under another name: client.open_run(other, state=...)"


class SessionDiffers(Conflict):
    """The session was opened with another world size, or another who decides."""

    hint = "all ranks of a job open the same session; another job takes another id"


class StatisticsDiffer(Conflict):
    """This rank has sent other statistics for this step."""

    hint = "steps that are done again belong to a new session: client.open_run(name, state=...)"


class BadStep(Invalid):
    """The session begins after this step, or there is no such step to go on from."""


class BadRank(Invalid):
    """The rank is not one of the session's."""


class BadStatistics(Invalid):
    """These are no statistics, or they contradict themselves."""

    hint = "give a BinStatistics of calibrators.adafocal"


class BadState(Invalid):
    """This is no state, or not one of this run and step."""


class BadSettings(Invalid):
    """A monitor has no settings."""
