"""``calibrd fit``, on the service or locally."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrators import ParameterError, archive
from calibrators.comparison.recommendation import Candidate, recommend
from calibrators.fitting.evaluation import Judged
from calibrators.registry import DEFAULT_METHOD, make_recipe
from calibrd.api.references import checked_alias, checked_name
from calibrd.cli.context import MAP_ENDING, AddCommand, CommandContext, add_rows_flags
from calibrd.cli.fit_output import answer_all, answer_one, choice
from calibrd.cli.output import CommandError, PromotionFailed
from calibrd.client import Client
from calibrd.io.dataset_files import ENDINGS, SetFile
from calibrd.io.parquet_files import locate_errors
from calibrd.io.row_blocks import atomic_target, check_folder
from calibrd.maps.local_fit import fit_local
from calibrd.models import Dataset, Recommendation, Version

RETRY_SECONDS = 30.0
# methods, each with its parameters
Methods = list[tuple[str, Mapping[str, Any]]]
# the versions and, if there are several, the recommendation
Made = tuple[list[Version], Recommendation | None]


def add_to(add_command: AddCommand) -> None:
    """Add the command."""
    parser = add_command("fit", fit, "fit a map, judge it on held-out rows and create a version")
    parser.add_argument(
        "data",
        metavar="DATA",
        help=f"{ENDINGS} file with logits (or probabilities), labels and optional segments",
    )
    parser.add_argument("--name", help="name of the calibrator on the service")
    parser.add_argument(
        "--method",
        action="append",
        help="auto, temperature, smart, ...; repeat the option to create one version per method "
        f"[{DEFAULT_METHOD}]",
    )
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the method, such as steps=200; may be repeated",
    )
    parser.add_argument(
        "--model", metavar="FINGERPRINT", help="fingerprint of the model that produced the logits"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed for the splits and the fit [0]"
    )
    parser.add_argument(
        "--held-out",
        type=float,
        metavar="SHARE",
        help="share of the rows held out for judging [0.2, or cross-fitting below 1,000 rows]",
    )
    parser.add_argument(
        "--evaluation",
        metavar="FILE",
        help="judge on the rows of this file instead of held-out rows",
    )
    parser.add_argument("--description", default="", help="text stored with the version")
    parser.add_argument("--promote", metavar="ALIAS", help="point this alias at the new version")
    parser.add_argument(
        "--local",
        action="store_true",
        help="fit locally and register only the map; no rows are sent",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar=f"FILE{MAP_ENDING}",
        help="fit without a service and write the map to this file",
    )
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    add_rows_flags(parser)


def fit(context: CommandContext) -> None:
    """Fit a map and print its report."""
    flags = context.flags
    _check(flags)
    methods = _methods(flags)
    if flags.out is not None:
        _fit_to_file(context, methods)
        return
    with context.client(RETRY_SECONDS) as client:
        versions, advice = (_fit_locally if flags.local else _fit_on_service)(
            context, client, methods
        )
        if len(versions) > 1:
            answer_all(context, versions, advice)
            return
        (version,), alias = versions, None
        if flags.promote is not None:
            try:
                alias = client.promote(flags.name, version, alias=flags.promote)
            except Exception as error:
                raise PromotionFailed(version.reference, error) from error
    answer_one(context, version, alias)


def _methods(flags: argparse.Namespace) -> Methods:
    """Return the methods to fit, each with its parameters."""
    methods: list[str] = flags.method or [DEFAULT_METHOD]
    params: dict[str, Any] = {}
    for name, value in map(_param, flags.param):
        if name in params:
            raise CommandError("usage", f"--param {name!r} was given twice")
        params[name] = value
    repeated = [name for place, name in enumerate(methods) if name in methods[:place]]
    if repeated:
        raise CommandError("usage", f"--method {repeated[0]!r} was given twice")
    if len(methods) > 1:
        one_only = {
            "--param": bool(params),
            "--promote": flags.promote is not None,
            "--out": flags.out is not None,
        }
        for flag in (flag for flag, is_given in one_only.items() if is_given):
            raise CommandError("usage", f"{flag} needs a single --method, got {', '.join(methods)}")
    return [(method, params) for method in methods]


def _check(flags: argparse.Namespace) -> None:
    if (flags.name is None) == (flags.out is None):
        raise CommandError(
            "usage", "use --name NAME for a version on the service, or --out FILE for a file"
        )
    if flags.name is not None:
        checked_name(flags.name)
    if flags.promote is not None:
        checked_alias(flags.promote)
    if flags.evaluation and Path(flags.evaluation).resolve() == Path(flags.data).resolve():
        raise CommandError("usage", "--evaluation must not be the same file as DATA")
    if flags.out is None:
        return
    if flags.local or flags.promote is not None or flags.model is not None:
        raise CommandError("usage", "--local, --promote and --model cannot be used with --out")
    if flags.out.suffix != MAP_ENDING:
        raise CommandError("usage", f"--out must end in {MAP_ENDING}, got {flags.out}")
    check_folder(flags.out)
    if flags.out.exists() and not flags.force:
        raise CommandError("file_exists", f"{flags.out} already exists: replace it with --force")


def _fit_on_service(context: CommandContext, client: Client, methods: Methods) -> Made:
    flags, bars = context.flags, context.output.bars
    data = _rows(context, flags.data, methods)
    other = None if flags.evaluation is None else _evaluation(context, data, methods)
    dataset = _uploaded(context, client, data)
    evaluation = None if other is None else _uploaded(context, client, other)
    started = client.start_fit(
        flags.name,
        dataset=dataset,
        methods=methods,
        seed=flags.seed,
        model=flags.model,
        held_out=flags.held_out,
        evaluation=evaluation,
        description=flags.description,
        progress=bars,
    )
    try:
        done = client.wait(started, progress=bars)
    except KeyboardInterrupt:
        context.output.note(
            f"fit {started.id} continues; `calibrd versions {flags.name}` will list its version"
        )
        raise
    made = [client.get_version(f"{flags.name}@{number}") for number in done.versions]
    return made, done.recommendation


def _rows(context: CommandContext, path: str, methods: Methods) -> SetFile:
    """Return the rows of a file; raise CommandError if it lacks segments that a method needs."""
    needing = (_method_needing_segments(*one, context.flags.seed) for one in methods)
    method = next((one for one in needing if one is not None), None)
    found = context.set_file(path).for_segments(method is not None)
    if method is not None and found.segments is None:
        raise CommandError(
            "missing_segments",
            f"the method {method!r} needs the segment of each row, but {path} has no "
            "'segments' or 'segment'",
            "use --segments-column to name the array or column that holds them",
        )
    return found


def _method_needing_segments(method: str, params: Mapping[str, Any], seed: int) -> str | None:
    try:
        return make_recipe(method, params, seed=seed).method_needing_segments
    except ParameterError:  # the service decides: it may support more methods
        return None


def _evaluation(context: CommandContext, data: SetFile, methods: Methods) -> SetFile:
    """Return the rows of --evaluation; raise CommandError unless kind and classes match DATA."""
    found = _rows(context, context.flags.evaluation, methods)
    checked, classes = found.checked(), data.values.shape[1:]
    if (checked.kind, (checked.k,)) != (data.kind, classes):
        raise CommandError(
            "wrong_kind",
            f"{found.path} contains {checked.kind} of {checked.k} classes, but {data.path} "
            f"contains {data.kind} of {' x '.join(map(str, classes))}",
        )
    return found


def _uploaded(context: CommandContext, client: Client, data: SetFile) -> Dataset:
    context.output.note(f"{data.path}: uploading {len(data.labels):,} rows to {client.url}")
    with locate_errors(data.path, 0):
        return client.upload(
            data.values,
            data.labels,
            kind=data.kind,
            segments=data.segments,
            features=data.features,
            head=data.head,
            progress=context.output.bars,
        )


def _fit_locally(context: CommandContext, client: Client, methods: Methods) -> Made:
    """Fit all methods locally, then register their maps."""
    flags = context.flags
    made: list[Version] = []
    fitted = _judged(context, methods)
    for judged in fitted:
        try:
            version = client.register(
                flags.name,
                judged.map,
                judged.report,
                model=flags.model,
                description=flags.description,
            )
        except Exception as error:
            for one in made:
                error.add_note(f"{one.reference} ({one.method}) has already been created")
            raise
        made.append(version)
    if len(made) < 2:
        return made, None
    names = (method for method, _ in methods)
    found = recommend(
        [
            Candidate(name, one.map.method, one.report, one.rows)
            for name, one in zip(names, fitted, strict=True)
        ]
    )
    number = None if found.place is None else made[found.place].number
    return made, Recommendation(number, found.reason)


def _fit_to_file(context: CommandContext, methods: Methods) -> None:
    target: Path = context.flags.out
    (judged,) = _judged(context, methods)
    with atomic_target(target) as part:
        part.write_bytes(archive.dump(judged.map))
    document = {
        "file": str(target),
        "method": judged.map.method,
        "verdict": judged.report.verdict,
        "report": judged.report.to_dict(),
    }
    chosen = choice(judged.map.fit_info)
    lines = [judged.report.summary(), "", *chosen, f"wrote the {judged.map.method} map to {target}"]
    context.output.answer(document, "\n".join(lines))


def _judged(context: CommandContext, methods: Methods) -> list[Judged]:
    flags = context.flags
    for method, params in methods:
        make_recipe(method, params, seed=flags.seed)  # report bad parameters before reading files
    data = _rows(context, flags.data, methods)
    evaluation = None
    if flags.evaluation is not None:
        evaluation = _rows(context, flags.evaluation, methods).checked()
    context.output.note(f"{flags.data}: fitting {len(data.labels):,} rows locally")
    with locate_errors(data.path, 0):
        return [
            fit_local(
                data.values,
                data.labels,
                method=method,
                params=params,
                seed=flags.seed,
                kind=data.kind,
                segments=data.segments,
                features=data.features,
                head=data.head,
                evaluation=evaluation,
                held_out=flags.held_out,
                progress=context.output.bars,
            )
            for method, params in methods
        ]


def _param(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise CommandError("usage", f"--param takes NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
