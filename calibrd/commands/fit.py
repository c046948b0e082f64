"""``calibrd fit``: on the service, or here."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrators import ParameterError, archive
from calibrators.judging import Judged
from calibrators.registry import make_recipe
from calibrd.client import Client
from calibrd.commands.asked import MAP_ENDING, Asked, Verb, add_rows_flags
from calibrd.commands.output import AfterVersion, CommandError
from calibrd.files import SetFile
from calibrd.fitting import fit_local
from calibrd.references import checked_alias, checked_name
from calibrd.results import Alias, Dataset, Version
from calibrd.streams import check_folder, written_whole
from calibrd.tables import errors_of

PATIENCE = 30.0


def add_to(verb: Verb) -> None:
    """Add the command."""
    fitting = verb("fit", fit, "fit a map, judge it on rows the fit never saw, make a version")
    fitting.add_argument(
        "data",
        metavar="DATA",
        help=".npz with logits (or probabilities), labels and, if rows have segments, groups; "
        ".parquet",
    )
    fitting.add_argument("--name", help="of the calibrator on the service")
    fitting.add_argument("--method", default="auto", help="auto, temperature, smart, ... [auto]")
    fitting.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the method, such as steps=200; may be given several times",
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


def fit(asked: Asked) -> None:
    """Fit and show how it was judged."""
    flags = asked.flags
    _check(flags)
    params = dict(_param(one) for one in flags.param)
    if flags.out is not None:
        _fit_to_file(asked, params)
        return
    with asked.client(PATIENCE) as client:
        version = (_fit_here if flags.local else _fit_there)(asked, client, params)
        alias = None
        if flags.promote is not None:
            try:
                alias = client.promote(flags.name, version, alias=flags.promote)
            except Exception as error:
                raise AfterVersion(version.reference, error) from error
    _answer(asked, version, alias)


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


def _fit_there(asked: Asked, client: Client, params: dict[str, Any]) -> Version:
    flags, bars = asked.flags, asked.output.bars
    data = _rows(asked, flags.data)
    other = None if flags.evaluation is None else _evaluation(asked, data)
    dataset = _uploaded(asked, client, data)
    judging = None if other is None else _uploaded(asked, client, other)
    ordered = client.order(
        flags.name,
        dataset=dataset,
        methods=[(flags.method, params)],
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
    return client.get_version(f"{flags.name}@{done.versions[0]}")


def _rows(asked: Asked, path: str) -> SetFile:
    """A file's rows, with their segments if the method needs them."""
    method = _method_needing_groups(asked)
    found = asked.set_file(path).for_segments(method is not None)
    if method is not None and found.groups is None:
        raise CommandError(
            "no_groups",
            f"the method {method!r} needs the segment of each row, and {path} has no "
            "'groups' or 'group'",
            "name the array or column that holds them with --groups-column",
        )
    return found


def _method_needing_groups(asked: Asked) -> str | None:
    try:
        params = dict(_param(one) for one in asked.flags.param)
        return make_recipe(asked.flags.method, params, seed=asked.flags.seed).method_needing_groups
    except ParameterError:  # a service may know more than this library, and says what is wrong
        return None


def _evaluation(asked: Asked, data: SetFile) -> SetFile:
    """The rows that judge, which must be such as the fit sees."""
    found = _rows(asked, asked.flags.evaluation)
    checked, classes = found.checked(), data.values.shape[1:]
    if (checked.kind, (checked.k,)) != (data.kind, classes):
        raise CommandError(
            "wrong_kind",
            f"{found.path} holds {checked.kind} of {checked.k} classes, but {data.path} holds "
            f"{data.kind} of {' x '.join(map(str, classes))}",
        )
    return found


def _uploaded(asked: Asked, client: Client, data: SetFile) -> Dataset:
    asked.output.note(f"{data.path}: {len(data.labels):,} rows to {client.url}")
    with errors_of(data.path, 0):
        return client.upload(
            data.values,
            data.labels,
            kind=data.kind,
            groups=data.groups,
            progress=asked.output.bars,
        )


def _fit_here(asked: Asked, client: Client, params: dict[str, Any]) -> Version:
    judged = _judged(asked, params)
    return client.register(
        asked.flags.name,
        judged.map,
        judged.report,
        model=asked.flags.model,
        description=asked.flags.description,
    )


def _fit_to_file(asked: Asked, params: dict[str, Any]) -> None:
    target: Path = asked.flags.out
    judged = _judged(asked, params)
    with written_whole(target) as part:
        part.write_bytes(archive.dump(judged.map))
    document = {
        "file": str(target),
        "method": judged.map.method,
        "verdict": judged.report.verdict,
        "report": judged.report.to_dict(),
    }
    choice = _choice(judged.map.fit_info)
    lines = [judged.report.summary(), "", *choice, f"{judged.map.method} map in {target}"]
    asked.output.answer(document, "\n".join(lines))


def _judged(asked: Asked, params: dict[str, Any]) -> Judged:
    flags = asked.flags
    make_recipe(flags.method, params, seed=flags.seed)  # before anything is read
    data = _rows(asked, flags.data)
    judging = None if flags.evaluation is None else _rows(asked, flags.evaluation).checked()
    asked.output.note(f"{flags.data}: {len(data.labels):,} rows, fitted here")
    with errors_of(data.path, 0):
        return fit_local(
            data.values,
            data.labels,
            method=flags.method,
            params=params,
            seed=flags.seed,
            kind=data.kind,
            groups=data.groups,
            evaluation=judging,
            held_out=flags.held_out,
            progress=asked.output.bars,
        )


def _choice(info: Mapping[str, Any]) -> list[str]:
    """What ``auto`` chose and why, and what it left out."""
    if info.get("chosen_by") != "auto":
        return []
    left_out = [f"left out {one['method']}: {one['why']}" for one in info.get("left_out", [])]
    return [f"auto chose {info.get('winner')}: {info.get('why')}", *left_out]


def _param(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise CommandError("usage", f"--param takes NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _answer(asked: Asked, version: Version, alias: Alias | None) -> None:
    report = version.report
    document = {
        "version": dataclasses.replace(version, report=None),
        "report": None if report is None else report.to_dict(),
        "alias": alias,
    }
    lines = [] if report is None else [report.summary(), ""]
    lines += _choice(version.fit_info)
    lines.append(f"{version.reference} ({version.method}) is on the service")
    if alias is not None:
        lines.append(f"{version.calibrator}@{alias.name} is version {alias.version}")
        if alias.warning:
            asked.output.note(f"warning: {alias.warning}")
    asked.output.answer(document, "\n".join(lines))
