"""Promote and roll back: the preview, the effect, and refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from helpers.dashboard_pages import Shell, check_page, csrf_of, make_key, row_of, signed_in
from helpers.live_service import Local, in_process, sample
from helpers.registration import registration
from helpers.workspace_contents import ALIAS, fitted_elsewhere
from sqlalchemy import update

from calibrators import CalibrationSet
from calibrators.fitting.evaluation import fit_and_judge
from calibrators.methods.identity import Identity
from calibrators.methods.segmented import SegmentedMap
from calibrators.methods.temperature import TemperatureMap
from service.access.permissions import Scope
from service.storage.tables import versions

NAME = "fashion"
HERE = f"/calibrators/{NAME}"
ROLLBACK = f"{HERE}/aliases/{ALIAS}/rollback"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Run a service: version 1 is judged, 2 is not, 3 takes other input, 4 has no change."""
    body = fitted_elsewhere()
    unjudged = {name: one for name, one in body.items() if name != "report"}
    unchanged, report = fit_and_judge(Identity(), CalibrationSet(*sample(1200, 5)))
    with in_process(tmp_path_factory.mktemp("aliases")) as made:
        bodies = (
            body,
            unjudged,
            _of_classes(4),
            registration(unchanged, report=report.to_dict(), model="sha256:other"),
        )
        for one in bodies:
            answer = made.post(f"/v1/calibrators/{NAME}/versions", json=one)
            assert answer.status_code == 201, answer.text
        yield made


def _of_classes(classes: int) -> dict[str, Any]:
    fitted, report = fit_and_judge(Identity(), CalibrationSet(*sample(1200, classes)))
    return registration(fitted, report=report.to_dict())


@pytest.fixture
def client(service: Local) -> Iterator[Local]:
    """Return a client that may promote, with the alias at version 1."""
    with signed_in(service, Scope.PROMOTE, name="ann") as made:
        promote(made, 1, force="yes", reason="as at the beginning")
        yield made


def promote(client: Local, number: int, **more: str) -> httpx.Response:
    """Submit the form of the page like a browser."""
    page = client.get(f"{HERE}/promote", params={"version": number, "alias": ALIAS}).text
    expected = re.search(r'name="expected" value="(\d+)"', page)
    form = {"alias": ALIAS, "version": str(number), "csrf": csrf_of(client), **more}
    return client.post(
        f"{HERE}/promote", data={"expected": expected[1] if expected else "0", **form}
    )


def place(client: Local) -> int:
    return client.get(f"/v1/calibrators/{NAME}/aliases/{ALIAS}").json()["version"]


def test_the_page_says_what_changes_for_callers_before_anything_does(client: Local) -> None:
    page = client.get(f"{HERE}/promote", params={"version": 4})
    check_page(page)
    assert f"{NAME}@{ALIAS} get version 4 instead of version 1" in Shell(page.text).words
    assert "version 1, temperature version 4, identity" in row_of(page.text, "map")
    assert "calls that specify another model" in row_of(page.text, "model")
    assert "the model's the model's" in row_of(page.text, "predicted class")
    report = fitted_elsewhere()["report"]
    ece = report["before"]["metrics"]["ece"]  # which version 4 leaves as it is
    assert f"{100 * ece:.2f} %" in row_of(page.text, "ECE, equal-width bins")
    assert "more rows exceed" in row_of(page.text, "mean confidence")
    assert place(client) == 1


def test_promote_moves_records_the_reason_and_can_be_rolled_back(client: Local) -> None:
    moved = promote(client, 4, reason="worth a try")
    assert (moved.status_code, moved.headers["location"]) == (303, f"../..{HERE}")
    assert place(client) == 4
    page = client.get(ROLLBACK)
    assert "from version 4 to version 1" in Shell(page.text).words
    expected = re.search(r'name="expected" value="(\d+)"', page.text)
    form = {"csrf": csrf_of(client), "expected": expected[1], "reason": "it was not"}
    assert client.post(ROLLBACK, data=form).status_code == 303
    assert place(client) == 1
    history = client.get(f"{HERE}/aliases/{ALIAS}").text
    newest, before, *_ = re.findall(r"<tr><th scope=\"row\">(\d+)</th>", history)
    assert "4 1 ann" in row_of(history, newest)
    assert "it was not rollback" in row_of(history, newest)
    assert "worth a try" in row_of(history, before)
    again = client.post(ROLLBACK, data=form)
    assert again.status_code == 412
    assert "has changed since you read it" in Shell(again.text).words


@pytest.mark.parametrize(("version", "told"), [(2, "was not judged"), (3, "takes logits of 4")])
def test_promotions_that_need_force_are_refused_without_it(
    client: Local, version: int, told: str
) -> None:
    page = client.get(f"{HERE}/promote", params={"version": version}).text
    assert told in Shell(page).words
    assert re.search(r'name="force" value="yes" required', page)
    assert promote(client, version, reason="because").status_code == 409
    assert promote(client, version, force="yes").status_code == 409  # a reason, too
    assert place(client) == 1
    assert promote(client, version, force="yes", reason="because").status_code == 303
    assert place(client) == version


def test_a_concurrent_move_is_reported_and_nothing_changes(client: Local) -> None:
    late = promote(client, 4, expected="0")
    assert late.status_code == 412
    assert "has changed since you read it" in Shell(late.text).words
    assert place(client) == 1


@pytest.mark.parametrize(
    ("form", "status", "told"),
    [
        ({"version": "one"}, 422, "version must be a non-negative integer"),
        ({"version": "99"}, 404, "has no version 99"),
        ({"alias": "7"}, 422, "all digits"),
        ({"reason": "x" * 1001}, 422, "at most 1000 characters"),
        ({"expected": "-1"}, 422, "expected must be a non-negative integer"),
        ({"csrf": "0" * 64}, 403, "is missing or invalid"),
    ],
)
def test_forms_that_break_a_rule_show_a_message(
    client: Local, form: dict[str, str], status: int, told: str
) -> None:
    answer = promote(client, 4, **form)
    assert answer.status_code == status
    assert told in check_page(answer).words
    assert place(client) == 1


def test_a_reason_of_many_lines_is_counted_as_browsers_count_it(client: Local) -> None:
    assert promote(client, 4, reason="a\r\n" * 499 + "a").status_code == 303


def test_claims_of_a_registered_map_are_not_trusted(service: Local) -> None:
    fitted = TemperatureMap(k=5, temperature=2.0).with_info(winner=["identity"])
    body = registration(fitted, report=fitted_elsewhere()["report"])
    made = service.post("/v1/calibrators/foreign/versions", json=body, headers=bearer(service))
    assert made.status_code == 201, made.text
    with service.app.state.parts.database.write() as store:
        named = update(versions).where(versions.c.map_sha256 == made.json()["map_sha256"])
        store.session.execute(named.values(method="unheard-of"))
    with signed_in(service, Scope.PROMOTE, name="eve") as client:
        page = client.get("/calibrators/foreign/promote", params={"version": 1})
    assert page.status_code == 200
    assert "may differ from the model's" in row_of(page.text, "predicted class")


def test_segmented_maps_chosen_by_auto_preserve_what_their_base_preserves(service: Local) -> None:
    base = TemperatureMap(k=5, temperature=2.0)
    chosen = SegmentedMap(k=5, base=base, segments=(), temperatures=np.zeros(0))
    body = registration(chosen.with_info(winner="segmented", base="temperature"))
    made = service.post("/v1/calibrators/by-auto/versions", json=body, headers=bearer(service))
    assert made.status_code == 201, made.text
    with signed_in(service, Scope.PROMOTE, name="ann") as client:
        page = client.get("/calibrators/by-auto/promote", params={"version": 1})
    assert "may differ from the model's" not in row_of(page.text, "predicted class")


def bearer(service: Local) -> dict[str, str]:
    return {"Authorization": f"Bearer {make_key(service, Scope.ADMIN)}"}


def test_an_impossible_alias_is_refused_before_a_plan_is_shown(client: Local) -> None:
    for alias in ("Foo Bar!", "", "7"):
        answer = client.get(f"{HERE}/promote", params={"version": 4, "alias": alias})
        assert answer.status_code == 422


def test_without_the_scope_only_the_history_is_shown(service: Local, client: Local) -> None:
    with signed_in(service, Scope.FIT, name="bob") as reader:
        assert reader.get(f"{HERE}/aliases/{ALIAS}").status_code == 200
        for path in (f"{HERE}/promote", ROLLBACK):
            assert reader.get(path).status_code == 403
            assert reader.post(path, data={"csrf": csrf_of(reader)}).status_code == 403
    assert place(client) == 1


def test_a_first_move_cannot_be_rolled_back(client: Local) -> None:
    form = {"alias": "fresh", "version": "1", "expected": "0", "csrf": csrf_of(client)}
    assert client.post(f"{HERE}/promote", data=form).status_code == 303
    for page in (HERE, f"{HERE}/aliases/fresh"):
        assert "aliases/fresh/rollback" not in client.get(page).text
    refused = client.get(f"{HERE}/aliases/fresh/rollback")
    assert refused.status_code == 409
    assert "has no earlier version" in Shell(refused.text).words
