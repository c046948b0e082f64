"""``calibrd list``, ``calibrd versions``, ``calibrd runs`` and ``calibrd run``."""

from __future__ import annotations

from calibrators.fitting.fallback import fallback_sentence
from calibrd.cli.context import AddCommand, CommandContext, add_limit_flag
from calibrd.cli.output import minute, table
from calibrd.run_models import RunMetrics, RunStep

METRICS = ("ece", "ada_ece", "nll", "accuracy")


def add_to(add_command: AddCommand) -> None:
    """Add the commands."""
    list_parser = add_command("list", list_calibrators, "list the calibrators of the workspace")
    add_limit_flag(list_parser)
    versions_parser = add_command(
        "versions", list_versions, "list the versions of a calibrator, newest first"
    )
    versions_parser.add_argument("name", metavar="NAME", help="name of the calibrator")
    add_limit_flag(versions_parser)
    runs_parser = add_command("runs", list_runs, "list training runs, most recently updated first")
    runs_parser.add_argument("--archived", action="store_true", help="list archived runs instead")
    add_limit_flag(runs_parser)
    steps_parser = add_command("run", list_steps, "list the steps of a training run, oldest first")
    steps_parser.add_argument("name", metavar="NAME", help="name of the run")
    steps_parser.add_argument(
        "--session",
        metavar="ID",
        help="list all steps of a session, including those repeated later",
    )
    add_limit_flag(steps_parser)


def list_calibrators(context: CommandContext) -> None:
    """List calibrators with their aliases."""
    with context.client() as client:
        found = client.calibrators(limit=context.flags.limit)
    rows = [
        (one.name, one.latest, ", ".join(f"{alias.name}={alias.version}" for alias in one.aliases))
        for one in found
    ]
    context.output.answer(found, table(("name", "latest", "aliases"), rows))


def list_versions(context: CommandContext) -> None:
    """List versions with their verdicts."""
    with context.client() as client:
        found = client.versions(context.flags.name, limit=context.flags.limit)
    head = ("version", "method", "verdict", "rows", "model", "created (UTC)", "by", "what it means")
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
    context.output.answer(found, table(head, rows))


def list_runs(context: CommandContext) -> None:
    """List training runs with the metrics of their last steps."""
    with context.client() as client:
        found = client.runs(archived=context.flags.archived, limit=context.flags.limit)
    head = ("run", "kind", "step", *METRICS, "updated (UTC)")
    rows = [
        (one.name, one.kind, one.step, *_numbers(one.metrics), minute(one.updated_at))
        for one in found
    ]
    context.output.answer(found, table(head, rows))


def list_steps(context: CommandContext) -> None:
    """List the decided steps of a run with their metrics and the range of their gammas."""
    flags = context.flags
    with context.client() as client:
        found = client.run_history(flags.name, session=flags.session, limit=flags.limit)
    head = ("step", "session", *METRICS, "gammas", "notes")
    rows = [
        (one.step, one.session, *_numbers(one.metrics), _range(one.gammas), _notes(one))
        for one in found
    ]
    context.output.answer(found, table(head, rows))


def _numbers(metrics: RunMetrics | None) -> list[str]:
    values = [None if metrics is None else getattr(metrics, name) for name in METRICS]
    return ["" if value is None else f"{value:.4f}" for value in values]


def _range(gammas: list[float] | None) -> str:
    return f"{min(gammas):.2f} to {max(gammas):.2f}" if gammas else ""


def _notes(step: RunStep) -> str:
    """Return notes on anything unusual about a step."""
    notes = {
        f"{len(step.ranks)} of {step.world_size} ranks": step.partial,
        "not verified": step.verified is False,
        f"{len(step.switched)} switched": bool(step.switched),
    }
    return ", ".join(note for note, holds in notes.items() if holds)
