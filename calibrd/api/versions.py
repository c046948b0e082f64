"""Calls for calibrators, versions and reports, and for registering maps fitted elsewhere."""

from __future__ import annotations

import base64
import dataclasses

from calibrators import CalibrationMap, Report, archive
from calibrators.comparison.judged_rows import JudgedRows
from calibrd.api.base import ApiBase, idempotency_key
from calibrd.api.references import Reference, checked_name
from calibrd.errors import NotFound
from calibrd.maps.local_map import LocalMap, map_of
from calibrd.models import Calibrator, Comparison, Dataset, Method, Version
from calibrd.transport.connection import drop_none
from calibrd.transport.flows import Flow, Work, call
from calibrd.transport.response_bodies import MAX_MAP_BYTES
from calibrd.transport.responses import document_of, member_of, record_of, records_of, report_of


class VersionCalls(ApiBase):
    """Calls for calibrators and versions."""

    @call
    def methods(self) -> Flow[list[Method]]:
        """List the methods that the service can fit."""
        response = yield from self.request("GET", "methods")
        return records_of(Method, document_of(response))

    @call
    def calibrators(self, *, limit: int | None = None) -> Flow[list[Calibrator]]:
        """List the calibrators of this workspace, sorted by name."""
        return (yield from self.request_all(Calibrator, "calibrators", limit=limit))

    @call
    def get_calibrator(self, name: str) -> Flow[Calibrator]:
        """Return a calibrator with its aliases."""
        return (
            yield from self.request_record(Calibrator, "GET", "calibrators", checked_name(name))
        )

    @call
    def versions(self, name: str, *, limit: int | None = None) -> Flow[list[Version]]:
        """List the versions of a calibrator, newest first, without their reports."""
        place = ("calibrators", checked_name(name), "versions")
        return (yield from self.request_all(Version, *place, limit=limit))

    @call
    def get_version(self, ref: str | Version) -> Flow[Version]:
        """Return a version (``name@3`` or ``name@production``) with its report."""
        return (yield from self.version_at(Reference.of(ref)))

    @call
    def report(self, ref: str | Version) -> Flow[Report]:
        """Return the report of a version; raise NotFound (``no_report``) if it has none."""
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
        """Change the tags or the description of a version; everything else is immutable."""
        target = Reference.of(ref)
        number = yield from self.number_at(target)
        place = ("calibrators", target.name, "versions", number)
        body = drop_none(tags=tags, description=description)
        return (
            yield from self.request_record(Version, "PATCH", *place, body=body, repeatable=True)
        )

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
        """Register a map that was fitted locally as a version; no logits leave this machine.

        ``calibrd.fit_local`` returns both the map and its report: ``register(name, *fitted)``.
        Without a report, the version can only be promoted with ``force``. Pass the ``rows`` of the
        result of ``fit_local`` as ``judged_rows`` to allow comparisons with other versions judged
        on the same data. These rows hold the confidence, NLL, Brier score and margin of each judged
        row, and whether the prediction was correct.
        """
        checked_name(name)
        plain = map_of(fitted)
        content: bytes = yield Work(lambda: archive.dump(plain))
        rows = None if judged_rows is None else judged_rows.dump()
        body = drop_none(
            map=base64.b64encode(content).decode(),
            report=None if report is None else report.to_dict(),
            judged_rows=None if rows is None else base64.b64encode(rows).decode(),
            model=model,
            tags=tags,
        )
        version = yield from self.request_record(
            Version,
            "POST",
            "calibrators",
            name,
            "versions",
            body={**body, "description": description},
            headers=idempotency_key(),
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
        """Compare two versions of a calibrator, given by number or alias, on the same rows.

        The verdict judges ``second`` relative to ``first``: ``improved`` means that ``second`` is
        better. The versions are compared on a ``dataset``, or by default on the rows that both were
        judged on and neither was fitted on. If either version was fitted on the rows of the
        dataset, there is no verdict.
        """
        checked_name(name)
        numbers = []
        for one in (first, second):
            which = one.number if isinstance(one, Version) else one
            numbers.append((yield from self.number_at(Reference.of(f"{name}@{which}"))))
        dataset_id = dataset.id if isinstance(dataset, Dataset) else dataset
        query = drop_none(first=numbers[0], second=numbers[1], dataset=dataset_id)
        response = yield from self.request("GET", "calibrators", name, "compare", query=query)
        document = document_of(response)
        report = report_of(member_of(document, "report"))
        facts = {name: one for name, one in document.items() if name != "report"}
        return record_of(Comparison, facts, report=report)

    @call
    def get_map(self, ref: str | Version) -> Flow[bytes]:
        """Return the bytes of a version's map, which ``calibrators.archive.load`` reads."""
        return (yield from self._bytes(Reference.of(ref), "map"))

    @call
    def get_onnx(self, ref: str | Version) -> Flow[bytes]:
        """Return the ONNX model of a version that the service fitted.

        The model maps float32 logits (n, k) to probabilities (n, k). Registered versions have no
        ONNX model; export their maps with ``calibrators.export.onnx``.
        """
        return (yield from self._bytes(Reference.of(ref), "onnx"))

    def version_at(self, ref: Reference) -> Flow[Version]:
        """Return the version that a reference points at now, with its report."""
        number = yield from self.number_at(ref)
        version = yield from self.request_record(
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
        """Return the report of a version."""
        response = yield from self.request("GET", "calibrators", name, "versions", number, "report")
        return report_of(document_of(response))

    def _bytes(self, ref: Reference, form: str) -> Flow[bytes]:
        number = yield from self.number_at(ref)
        place = ("calibrators", ref.name, "versions", number, form)
        response = yield from self.request("GET", *place, max_bytes=MAX_MAP_BYTES)
        return response.content
