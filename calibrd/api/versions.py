"""Calibrators, their versions and reports, and maps that were fitted elsewhere."""

from __future__ import annotations

import base64
import dataclasses

from calibrators import CalibrationMap, Report, archive
from calibrators.comparison.judged_rows import JudgedRows
from calibrd.api.base import Asking, once
from calibrd.api.references import Reference, checked_name
from calibrd.errors import NotFound
from calibrd.maps.local_map import LocalMap, map_of
from calibrd.models import Calibrator, Comparison, Dataset, Method, Version
from calibrd.transport.connection import given
from calibrd.transport.flows import Flow, Work, call
from calibrd.transport.response_bodies import MOST_MAP_BYTES
from calibrd.transport.responses import document_of, member_of, record_of, records_of, report_of


class VersionCalls(Asking):
    """Calls about calibrators and versions."""

    @call
    def methods(self) -> Flow[list[Method]]:
        """What the service can fit."""
        answer = yield from self.ask("GET", "methods")
        return records_of(Method, document_of(answer))

    @call
    def calibrators(self, *, limit: int | None = None) -> Flow[list[Calibrator]]:
        """The calibrators of this workspace, by name."""
        return (yield from self.ask_for_all(Calibrator, "calibrators", limit=limit))

    @call
    def get_calibrator(self, name: str) -> Flow[Calibrator]:
        """A calibrator and its aliases."""
        return (yield from self.ask_for(Calibrator, "GET", "calibrators", checked_name(name)))

    @call
    def versions(self, name: str, *, limit: int | None = None) -> Flow[list[Version]]:
        """The versions of a calibrator, newest first, without their reports."""
        place = ("calibrators", checked_name(name), "versions")
        return (yield from self.ask_for_all(Version, *place, limit=limit))

    @call
    def get_version(self, ref: str | Version) -> Flow[Version]:
        """A version (``name@3`` or ``name@production``) with its report."""
        return (yield from self.version_at(Reference.of(ref)))

    @call
    def report(self, ref: str | Version) -> Flow[Report]:
        """How a version was judged; ``no_report`` if it was registered without a report."""
        number = yield from self.number_at(Reference.of(ref))
        return (yield from self.report_of(Reference.of(ref).name, number))

    @call
    def annotate(
        self,
        ref: str | Version,
        *,
        tags: dict[str, str] | None = None,
        description: str | None = None,
    ) -> Flow[Version]:
        """Change the tags or the description of a version; nothing else of it ever changes."""
        wanted = Reference.of(ref)
        number = yield from self.number_at(wanted)
        place = ("calibrators", wanted.name, "versions", number)
        body = given(tags=tags, description=description)
        return (yield from self.ask_for(Version, "PATCH", *place, body=body, repeatable=True))

    @call
    def register(
        self,
        name: str,
        fitted: CalibrationMap | LocalMap,
        report: Report | None = None,
        *,
        judged_rows: JudgedRows | None = None,
        model: str | None = None,
        tags: dict[str, str] | None = None,
        description: str = "",
    ) -> Flow[Version]:
        """Make a version of a map that was fitted here: no logits leave this machine.

        ``calibrd.fit_local`` gives both the map and its report: ``register(name, *fitted)``.
        Without a report the version can only be promoted by force. ``judged_rows``, the ``rows`` of
        what ``fit_local`` gives, let ``compare`` compare it with other versions judged on the same
        data: of each judged row its confidence, NLL, Brier score, margin and whether it was right.
        """
        checked_name(name)
        plain = map_of(fitted)
        content: bytes = yield Work(lambda: archive.dump(plain))
        rows = None if judged_rows is None else judged_rows.dump()
        body = given(
            map=base64.b64encode(content).decode(),
            report=None if report is None else report.to_dict(),
            judged_rows=None if rows is None else base64.b64encode(rows).decode(),
            model=model,
            tags=tags,
        )
        version = yield from self.ask_for(
            Version,
            "POST",
            "calibrators",
            name,
            "versions",
            body={**body, "description": description},
            headers=once(),
            repeatable=True,
        )
        return dataclasses.replace(version, report=report)

    @call
    def compare(
        self,
        name: str,
        first: int | str | Version,
        second: int | str | Version,
        *,
        dataset: str | Dataset | None = None,
    ) -> Flow[Comparison]:
        """Measure two versions of a calibrator, numbers or aliases, on the same rows.

        On rows that both were judged on, by fits that had not seen them; or on a ``dataset``. There
        is no verdict on rows that one of them was fitted on.
        """
        checked_name(name)
        numbers = []
        for one in (first, second):
            wanted = one.number if isinstance(one, Version) else one
            numbers.append((yield from self.number_at(Reference.of(f"{name}@{wanted}"))))
        named = dataset.id if isinstance(dataset, Dataset) else dataset
        query = given(first=numbers[0], second=numbers[1], dataset=named)
        answer = yield from self.ask("GET", "calibrators", name, "compare", query=query)
        document = document_of(answer)
        report = report_of(member_of(document, "report"))
        facts = {name: one for name, one in document.items() if name != "report"}
        return record_of(Comparison, facts, report=report)

    @call
    def get_map(self, ref: str | Version) -> Flow[bytes]:
        """The bytes of a version's map; ``calibrators.archive.load`` reads them."""
        return (yield from self._bytes(Reference.of(ref), "map"))

    @call
    def get_onnx(self, ref: str | Version) -> Flow[bytes]:
        """A version that the service fitted as ONNX: float32 logits (n, k) to probabilities (n, k).

        One that was registered has none there; make it with ``calibrators.export.onnx``.
        """
        return (yield from self._bytes(Reference.of(ref), "onnx"))

    def version_at(self, ref: Reference) -> Flow[Version]:
        """The version that a reference means now, with its report."""
        number = yield from self.number_at(ref)
        version = yield from self.ask_for(
            Version, "GET", "calibrators", ref.name, "versions", number
        )
        if version.verdict is None:
            try:
                report = yield from self.report_of(ref.name, number)
            except NotFound:
                return version
        else:
            report = yield from self.report_of(ref.name, number)
        return dataclasses.replace(version, report=report)

    def report_of(self, name: str, number: int) -> Flow[Report]:
        """The report of a version."""
        answer = yield from self.ask("GET", "calibrators", name, "versions", number, "report")
        return report_of(document_of(answer))

    def _bytes(self, ref: Reference, form: str) -> Flow[bytes]:
        number = yield from self.number_at(ref)
        place = ("calibrators", ref.name, "versions", number, form)
        answer = yield from self.ask("GET", *place, most_bytes=MOST_MAP_BYTES)
        return answer.content
