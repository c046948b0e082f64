"""The pages for operators: keys and About."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from helpers.dashboard_pages import HTML, check_page, csrf_of, make_key, row_of, signed_in
from helpers.live_service import Local, in_process

from service.access.permissions import Scope
from service.web.pages.about import without_secrets


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Run a service with a key."""
    with in_process(tmp_path_factory.mktemp("keys")) as made:
        make_key(made, Scope.ADMIN, name="first")
        yield made


@pytest.fixture
def admin(service: Local) -> Iterator[Local]:
    with signed_in(service, Scope.ADMIN, name="admin") as made:
        yield made


@pytest.fixture
def reader(service: Local) -> Iterator[Local]:
    with signed_in(service, Scope.PREDICT, name="reader") as made:
        yield made


def test_keys_are_created_shown_once_rotated_and_revoked(admin: Local) -> None:
    csrf = {"csrf": csrf_of(admin)}
    made = admin.post(
        "/keys", data={**csrf, "name": "ci", "scope": ["fit", "predict"], "days": "9"}
    )
    assert made.status_code == 201
    (token,) = re.findall(r"cal_[0-9a-f]{12}_[0-9a-f]{48}", made.text)
    assert "ci" in check_page(made).words
    assert "fit, predict valid" in row_of(made.text, "ci")
    listed = admin.get("/keys").text
    assert token not in listed
    assert "yours" in row_of(listed, "admin")
    id = token.split("_")[1]
    rotated = admin.post(f"/keys/{id}/rotate", data={**csrf, "grace_hours": "0"})
    (newer,) = re.findall(r"cal_[0-9a-f]{12}_[0-9a-f]{48}", rotated.text)
    bearer = {"Authorization": f"Bearer {token}"}
    assert admin.get("/v1/runs", headers=bearer).json()["code"] == "key_has_ended"
    bearer = {"Authorization": f"Bearer {newer}"}
    assert admin.get("/v1/runs", headers=bearer).status_code == 200
    ended = admin.post(f"/keys/{newer.split('_')[1]}/revoke", data=csrf)
    assert (ended.status_code, ended.headers["location"]) == (303, "../../keys")
    assert admin.get("/v1/runs", headers=bearer).status_code == 401


def test_reloading_a_page_creates_no_second_key(admin: Local) -> None:
    def forms() -> dict[str, str]:
        (once,) = set(re.findall(r'name="once" value="([^"]+)"', admin.get("/keys").text))
        return {"csrf": csrf_of(admin), "once": once}

    form = {**forms(), "name": "twice", "scope": "fit"}
    first, again = (admin.post("/keys", data=form) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 409)
    assert "its key was shown then" in check_page(again).words
    assert len(re.findall(r'<th scope="row">twice</th>', admin.get("/keys").text)) == 1
    (id,) = re.findall(r"cal_([0-9a-f]{12})_", first.text)
    form = forms()
    rotated = [admin.post(f"/keys/{id}/rotate", data=form).status_code for _ in range(2)]
    assert rotated == [201, 409]


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"name": "x"}, "at least one scope"),
        ({"scope": "fit"}, "1 to 100 printable characters"),
        ({"name": "x", "scope": "root"}, "there is no scope"),
        ({"name": "x", "scope": "fit", "days": "many"}, "days must be a number"),
        ({"name": "x", "scope": "fit", "days": "nan"}, "greater than 0"),
    ],
)
def test_forms_that_break_a_rule_show_a_message(
    admin: Local, form: dict[str, str], told: str
) -> None:
    answer = admin.post("/keys", data={**form, "csrf": csrf_of(admin)})
    assert answer.status_code == 422
    assert told in check_page(answer).words


def test_the_first_key_page_explains_that_keys_are_now_required(local: Local) -> None:
    assert "anyone on this machine has access" in local.get("/keys", headers=HTML).text
    made = local.post("/keys", data={"name": "first", "scope": "admin"}, headers=HTML)
    assert "From now on, every request needs a key" in made.text
    assert local.get("/keys", headers=HTML).status_code == 303


def test_about_shows_settings_to_administrators_and_secrets_to_nobody(
    admin: Local, reader: Local
) -> None:
    page = admin.get("/about").text
    assert "no live worker" in page
    assert "max_upload_bytes" in page
    assert "max_upload_bytes" not in reader.get("/about").text
    assert "calibrd" in reader.get("/about").text
    assert "secret" not in without_secrets(
        "s3://me:secret@bucket/a?secret_access_key=secret#secret"
    )
