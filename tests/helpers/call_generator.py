"""Calls generated from the OpenAPI document, about half of them on existing objects."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from requests.structures import CaseInsensitiveDict
from schemathesis import APIOperation, Case, GenerationMode, checks

from helpers.accepted_calls import REAL, Real
from helpers.route_table import Call
from helpers.workspace_contents import ALIAS, CALIBRATOR, Things, make_one_of_each
from service.datasets.formats import Format, all_codecs

WANTED = int(os.environ.get("CALIBRD_TEST_CALLS", "250"))  # at least one round of all operations
SEED = int(os.environ.get("CALIBRD_TEST_SEED", "0"))
PER_OPERATION = 10
PER_DRAWING = 2
DRAWN = ("/report.html", "/report.svg", "/report.png")

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
    checks.negative_data_rejection,
]
# without a worker, it is not ready
MAY_BE_503 = "GET /readyz"

for one in all_codecs().values():
    if one.format is not Format.JSON:
        kind = "text/plain" if one.is_text else "application/octet-stream"
        schemathesis.serializer.alias(one.media_types[0], kind)


@dataclass
class Generated:
    """Counts of the calls to a service, and the failures by operation."""

    client: httpx.Client
    document: dict[str, Any]
    count: int = 0
    succeeded: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._session = requests.Session()
        self._headers = {"Authorization": self.client.headers["Authorization"]}
        self._schema = schemathesis.openapi.from_dict(self.document)
        # every call has a key, and unknown query parameters are allowed
        generation = self._schema.config.generation
        generation.with_security_parameters = generation.allow_extra_parameters = False
        self._restore()

    def run(self, wanted: int) -> None:
        """Repeat all operations until the number of calls is reached."""
        turn = 0
        while self.count < wanted and not self.failures:
            for found in self._schema.get_all_operations():
                self._try(found.ok(), turn)
                if found.ok().method == "delete":
                    self._restore()
            turn += 1
        self._session.close()

    def _restore(self) -> None:
        """Create one object of each kind; recreate those that were deleted."""
        self._things = make_one_of_each(self.client)
        # the event stream of a queued fit would never end
        self.client.delete(f"/v1/fits/{self._things.fit}")

    def _try(self, operation: APIOperation[Any, Any, Any, Any], turn: int) -> None:
        @seed(SEED + turn)
        @settings(
            max_examples=PER_DRAWING if operation.path.endswith(DRAWN) else PER_OPERATION,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=_cases(operation, self._things))
        def call(case: Case[Any]) -> None:
            self._call(case)

        try:
            call()
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - told at the end
            self.failures[operation.label] = _told(error)

    def _call(self, case: Case[Any]) -> None:
        response = case.call(
            base_url=str(self.client.base_url), session=self._session, headers=self._headers
        )
        self.count += 1
        self.succeeded[case.operation.label] += response.status_code < 300
        excluded = [checks.not_a_server_error] if case.operation.label == MAY_BE_503 else []
        if type(case.body) is bytes:  # a real body, because generated strings are never valid
            excluded.append(checks.negative_data_rejection)
        case.validate_response(response, checks=CHECKS, excluded_checks=excluded)


def _cases(operation: APIOperation[Any, Any, Any, Any], things: Things) -> st.SearchStrategy[Any]:
    """Yield valid and invalid cases of an operation, on existing and on made-up objects."""
    known = _known(operation, things)
    kinds = [operation.as_strategy(GenerationMode.POSITIVE)]
    kinds += operation.schema.get_strategies_from_examples(operation)
    if known:
        kinds.append(operation.as_strategy(GenerationMode.POSITIVE, path_parameters=known))
    if known or operation.query or operation.body:
        kinds.append(operation.as_strategy(GenerationMode.NEGATIVE, path_parameters=known))
        kinds.append(operation.as_strategy(GenerationMode.NEGATIVE))
    made_up = st.one_of(kinds)
    if operation.label not in REAL:
        return made_up
    asked = operation.as_strategy(GenerationMode.POSITIVE, path_parameters=known)
    real = st.builds(_with, asked, REAL[operation.label](things))
    return st.booleans().flatmap(lambda is_real: real if is_real else made_up)


def _with(case: Case[Any], real: Real) -> Case[Any]:
    case.query, case.headers = dict(real.query), CaseInsensitiveDict()
    if real.media_type:
        case.media_type, case.body = real.media_type, real.body
    return case


def _known(operation: APIOperation[Any, Any, Any, Any], things: Things) -> dict[str, Any]:
    """Return values for the path parameters that refer to existing objects."""
    call = Call(operation.method.upper(), operation.path)
    ids = {"/v1/fits": things.fit, "/v1/keys": things.key, "/v1/datasets": things.dataset}
    if "/parts/" in call.path or call.path.endswith("/commit"):
        ids["/v1/datasets"] = things.upload
    values = {"name": CALIBRATOR, "alias": ALIAS, "ref": ALIAS, "number": 1, "version": "1"}
    values |= {"run": things.run, "step": 1}
    values["id"] = next((id for path, id in ids.items() if call.path.startswith(path)), "")
    return {name: values[name] for name in call.parameters}


def _told(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "\n".join(_told(one) for one in error.exceptions)
    return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
