"""``calibrd fit``: on the service, or here."""

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
from calibrd.cli.context import MAP_ENDING, CommandContext, Verb, add_rows_flags
from calibrd.cli.fit_output import answer_all, answer_one, choice
from calibrd.cli.output import AfterVersion, CommandError
from calibrd.client import Client
from calibrd.io.dataset_files import ENDINGS, SetFile
from calibrd.io.parquet_files import errors_of
from calibrd.io.row_blocks import check_folder, written_whole
from calibrd.maps.local_fit import fit_local
from calibrd.models import Dataset, Recommendation, Version

PATIENCE = 30.0
# methods, each with its parameters
Wanted = list[tuple[str, Mapping[str, Any]]]
# versions, and which of several is recommended
Made = tuple[list[Version], Recommendation | None]


def add_to(verb: Verb) -> None:
    """Add the command."""
    fitting = verb("fit", fit, "fit a map, judge it on rows the fit never saw, make a version")
    fitting.add_argument(
        "data",
        metavar="DATA",
        help=f"{ENDINGS} with logits (or probabilities), labels and perhaps segments, one a row",
    )
    fitting.add_argument("--name", help="of the calibrator on the service")
    fitting.add_argument(
        "--method",
        action="append",
        help="auto, temperature, smart, ...; given several times, a version of each "
        f"[{DEFAULT_METHOD}]",
    )
    fitting.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the one method, such as steps=200; may be given several times",
    )
    fitting.add_argument("--model", metavar="FINGERPRINT", help="of the model that made the logits")
    fitting.add_argument("--seed", type=int, default=0, metavar="N", help="of splits and fit [0]")
    fitting.add_argument(
        "--held-out", type=float, metavar="SHARE", help="of the rows that judge [0.2, or folds]"
    )
    fitting.add_argument("--evaluation", metavar="FILE", help="rows that judge instead")
    fitting.add_argument("--description", default="", help="is kept with the version")
    fitting.add_argument("--promote", metavar="ALIAS", help="then point this alias at the version")
    fitting.add_argument(
        "--local", action="store_true", help="fit here and register only the map: no row leaves"
    )
    fitting.add_argument(
        "--out",
        type=Path,
        metavar=f"FILE{MAP_ENDING}",
        help="fit here and write the map: no service",
    )
    fitting.add_argument("--force", action="store_true", help="replace the file if it is there")
    add_rows_flags(fitting)


def fit(asked: CommandContext) -> None:
    """Fit and show how it was judged."""
    flags = asked.flags
    _check(flags)
    wanted = _wanted(flags)
    if flags.out is not None:
        _fit_to_file(asked, wanted)
        return
    with asked.client(PATIENCE) as client:
        versions, advice = (_fit_here if flags.local else _fit_there)(asked, client, wanted)
        if len(versions) > 1:
            answer_all(asked, versions, advice)
            return
        (version,), alias = versions, None
        if flags.promote is not None:
            try:
                alias = client.promote(flags.name, version, alias=flags.promote)
            except Exception as error:
                raise AfterVersion(version.reference, error) from error
    answer_one(asked, version, alias)


def _wanted(flags: argparse.Namespace) -> Wanted:
    """Return the methods to fit, each with its parameters."""
    methods: list[str] = flags.method or [DEFAULT_METHOD]
    params: dict[str, Any] = {}
    for name, value in map(_param, flags.param):
        if name in params:
            raise CommandError("usage", f"--param gives {name!r} twice")
        params[name] = value
    repeated = [name for place, name in enumerate(methods) if name in methods[:place]]
    if repeated:
        raise CommandError("usage", f"--method names {repeated[0]!r} twice")
    if len(methods) > 1:
        one_only = {
            "--param": bool(params),
            "--promote": flags.promote is not None,
            "--out": flags.out is not None,
        }
        for flag in (flag for flag, is_given in one_only.items() if is_given):
            raise CommandError("usage", f"{flag} is for one --method, got {', '.join(methods)}")
    return [(method, params) for method in methods]


def _check(flags: argparse.Namespace) -> None:
    if (flags.name is None) == (flags.out is None):
        raise CommandError(
            "usage", "say --name NAME for a version on the service, or --out FILE for a file"
        )
    if flags.name is not None:
        checked_name(flags.name)
    if flags.promote is not None:
        checked_alias(flags.promote)
    if flags.evaluation and Path(flags.evaluation).resolve() == Path(flags.data).resolve():
        raise CommandError("usage", "--evaluation must hold other rows than the fit sees")
    if flags.out is None:
        return
    if flags.local or flags.promote is not None or flags.model is not None:
        raise CommandError("usage", "--local, --promote and --model have no use with --out")
    if flags.out.suffix != MAP_ENDING:
        raise CommandError("usage", f"--out must end in {MAP_ENDING}, got {flags.out}")
    check_folder(flags.out)
    if flags.out.exists() and not flags.force:
        raise CommandError("file_exists", f"{flags.out} is there already; --force replaces it")


def _fit_there(asked: CommandContext, client: Client, wanted: Wanted) -> Made:
    flags, bars = asked.flags, asked.output.bars
    data = _rows(asked, flags.data, wanted)
    other = None if flags.evaluation is None else _evaluation(asked, data, wanted)
    dataset = _uploaded(asked, client, data)
    judging = None if other is None else _uploaded(asked, client, other)
    ordered = client.order(
        flags.name,
        dataset=dataset,
        methods=wanted,
        seed=flags.seed,
        model=flags.model,
        held_out=flags.held_out,
        evaluation=judging,
        description=flags.description,
        progress=bars,
    )
    try:
        done = client.wait(ordered, progress=bars)
    except KeyboardInterrupt:
        asked.output.note(f"fit {ordered.id} goes on; `calibrd versions {flags.name}` will list it")
        raise
    made = [client.get_version(f"{flags.name}@{number}") for number in done.versions]
    return made, done.recommendation


def _rows(asked: CommandContext, path: str, wanted: Wanted) -> SetFile:
    """Return a file's rows, with their segments if one of the methods needs them."""
    needing = (_method_needing_segments(*one, asked.flags.seed) for one in wanted)
    method = next((one for one in needing if one is not None), None)
    found = asked.set_file(path).for_segments(method is not None)
    if method is not None and found.segments is None:
        raise CommandError(
            "missing_segments",
            f"the method {method!r} needs the segment of each row, and {path} has no "
            "'segments' or 'segment'",
            "name the array or column that holds them with --segments-column",
        )
    return found


def _method_needing_segments(method: str, params: Mapping[str, Any], seed: int) -> str | None:
    try:
        return make_recipe(method, params, seed=seed).method_needing_segments
    except ParameterError:  # a service may know more than this library, and says what is wrong
        return None


def _evaluation(asked: CommandContext, data: SetFile, wanted: Wanted) -> SetFile:
    """The rows that judge, which must be such as the fit sees."""
    found = _rows(asked, asked.flags.evaluation, wanted)
    checked, classes = found.checked(), data.values.shape[1:]
    if (checked.kind, (checked.k,)) != (data.kind, classes):
        raise CommandError(
            "wrong_kind",
            f"{found.path} holds {checked.kind} of {checked.k} classes, but {data.path} holds "
            f"{data.kind} of {' x '.join(map(str, classes))}",
        )
    return found


def _uploaded(asked: CommandContext, client: Client, data: SetFile) -> Dataset:
    asked.output.note(f"{data.path}: {len(data.labels):,} rows to {client.url}")
    with errors_of(data.path, 0):
        return client.upload(
            data.values,
            data.labels,
            kind=data.kind,
            segments=data.segments,
            progress=asked.output.bars,
        )


def _fit_here(asked: CommandContext, client: Client, wanted: Wanted) -> Made:
    """Fit all methods here, then register all maps."""
    flags = asked.flags
    made: list[Version] = []
    fitted = _judged(asked, wanted)
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
                error.add_note(f"{one.reference} ({one.method}) was made before this")
            raise
        made.append(version)
    if len(made) < 2:
        return made, None
    names = (method for method, _ in wanted)
    found = recommend(
        [
            Candidate(name, one.map.method, one.report, one.rows)
            for name, one in zip(names, fitted, strict=True)
        ]
    )
    number = None if found.place is None else made[found.place].number
    return made, Recommendation(number, found.reason)


def _fit_to_file(asked: CommandContext, wanted: Wanted) -> None:
    target: Path = asked.flags.out
    (judged,) = _judged(asked, wanted)
    with written_whole(target) as part:
        part.write_bytes(archive.dump(judged.map))
    document = {
        "file": str(target),
        "method": judged.map.method,
        "verdict": judged.report.verdict,
        "report": judged.report.to_dict(),
    }
    chosen = choice(judged.map.fit_info)
    lines = [judged.report.summary(), "", *chosen, f"{judged.map.method} map in {target}"]
    asked.output.answer(document, "\n".join(lines))


def _judged(asked: CommandContext, wanted: Wanted) -> list[Judged]:
    flags = asked.flags
    for method, params in wanted:
        make_recipe(method, params, seed=flags.seed)  # before anything is read
    data = _rows(asked, flags.data, wanted)
    judging = None if flags.evaluation is None else _rows(asked, flags.evaluation, wanted).checked()
    asked.output.note(f"{flags.data}: {len(data.labels):,} rows, fitted here")
    with errors_of(data.path, 0):
        return [
            fit_local(
                data.values,
                data.labels,
                method=method,
                params=params,
                seed=flags.seed,
                kind=data.kind,
                segments=data.segments,
                evaluation=judging,
                held_out=flags.held_out,
                progress=asked.output.bars,
            )
            for method, params in wanted
        ]


def _param(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise CommandError("usage", f"--param takes NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
