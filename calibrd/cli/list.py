"""``calibrd list``, ``calibrd versions``, ``calibrd runs`` and ``calibrd run``."""

from __future__ import annotations

from calibrators.fitting.fallback import fallback_sentence
from calibrd.cli.context import CommandContext, Verb, add_limit_flag
from calibrd.cli.output import minute, table
from calibrd.run_models import RunMetrics, RunStep

METRICS = ("ece", "ada_ece", "nll", "accuracy")


def add_to(verb: Verb) -> None:
    """Add the commands."""
    listing = verb("list", list_calibrators, "list the calibrators of the workspace")
    add_limit_flag(listing)
    numbered = verb("versions", list_versions, "list the versions of a calibrator, newest first")
    numbered.add_argument("name", metavar="NAME")
    add_limit_flag(numbered)
    trainings = verb("runs", list_runs, "list training runs, those with news first")
    trainings.add_argument("--archived", action="store_true", help="those that are archived")
    add_limit_flag(trainings)
    steps = verb("run", list_steps, "list the steps of a training run, oldest first")
    steps.add_argument("name", metavar="NAME")
    steps.add_argument("--session", metavar="ID", help="its steps only, also those done again")
    add_limit_flag(steps)


def list_calibrators(asked: CommandContext) -> None:
    """List calibrators with their aliases."""
    with asked.client() as client:
        found = client.calibrators(limit=asked.flags.limit)
    rows = [
        (one.name, one.latest, ", ".join(f"{alias.name}={alias.version}" for alias in one.aliases))
        for one in found
    ]
    asked.output.answer(found, table(("name", "latest", "aliases"), rows))


def list_versions(asked: CommandContext) -> None:
    """List versions with their verdicts."""
    with asked.client() as client:
        found = client.versions(asked.flags.name, limit=asked.flags.limit)
    head = ("version", "method", "verdict", "rows", "model", "made (UTC)", "by", "what it means")
    rows = [
        (
            one.number,
            f"{one.method} (fell back)" if fallback_sentence(one.fit_info) else one.method,
            one.verdict or "not judged",
            one.rows,
            one.model,
            minute(one.created_at),
            one.created_by,
            "; ".join(filter(None, (one.verdict_sentence, fallback_sentence(one.fit_info)))),
        )
        for one in found
    ]
    asked.output.answer(found, table(head, rows))


def list_runs(asked: CommandContext) -> None:
    """List training runs with the metrics of their last steps."""
    with asked.client() as client:
        found = client.runs(archived=asked.flags.archived, limit=asked.flags.limit)
    head = ("run", "kind", "step", *METRICS, "news (UTC)")
    rows = [
        (one.name, one.kind, one.step, *_numbers(one.metrics), minute(one.updated_at))
        for one in found
    ]
    asked.output.answer(found, table(head, rows))


def list_steps(asked: CommandContext) -> None:
    """List the decided steps of a run: what was measured, and where its gammas lie."""
    flags = asked.flags
    with asked.client() as client:
        found = client.run_history(flags.name, session=flags.session, limit=flags.limit)
    head = ("step", "session", *METRICS, "gammas", "notes")
    rows = [
        (one.step, one.session, *_numbers(one.metrics), _range(one.gammas), _notes(one))
        for one in found
    ]
    asked.output.answer(found, table(head, rows))


def _numbers(metrics: RunMetrics | None) -> list[str]:
    values = [None if metrics is None else getattr(metrics, name) for name in METRICS]
    return ["" if value is None else f"{value:.4f}" for value in values]


def _range(gammas: list[float] | None) -> str:
    return f"{min(gammas):.2f} to {max(gammas):.2f}" if gammas else ""


def _notes(step: RunStep) -> str:
    """What is not as usual in a step."""
    said = {
        f"{len(step.ranks)} of {step.world_size} ranks": step.partial,
        "not verified": step.verified is False,
        f"{len(step.switched)} switched": bool(step.switched),
    }
    return ", ".join(words for words, holds in said.items() if holds)
