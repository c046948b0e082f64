"""The page of a new fit: the options of its form, for each role."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from helpers.dashboard_pages import HTML, MARKUP, check_page, csrf_of, make_key, signed_in
from helpers.live_service import NPZ, Local, in_process, npz, sample
from hypothesis import given
from hypothesis import strategies as st

from calibrators import all_methods
from calibrators.error_codes import ERROR_CODES
from calibrators.registry import DEFAULT_METHOD, make_recipe
from service.access.permissions import Scope
from service.names import NAME
from service.settings import MEGABYTE
from service.web.pages.new_fit import PATTERN, choices


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Run a service with a key and its own limits."""
    limits = {"max_upload_bytes": 3 * MEGABYTE, "max_json_bytes": MEGABYTE}
    with in_process(tmp_path_factory.mktemp("new-fit"), **limits) as made:
        make_key(made, Scope.ADMIN, name="first")
        yield made


@pytest.fixture
def fitter(service: Local) -> Iterator[Local]:
    with signed_in(service, Scope.FIT, name="fitter") as made:
        yield made


def test_the_curl_lines_run_as_pasted(service: Local, tmp_path: Path) -> None:
    token = make_key(service, Scope.FIT, name="shell")
    (tmp_path / "file.npz").write_bytes(npz(*sample(200, 3)))
    (tmp_path / "file.csv").write_text("logit_0,logit_1,label\n" + "1.5,0.2,0\n0.1,2.0,1\n" * 50)
    with signed_in(service, Scope.FIT) as reader:
        page = reader.get("/new-fit", params={"calibrator": "$(touch ran)"}).text
    found = re.search(r"<pre[^>]*><code>(.*?)</code>", page, re.S)
    assert found
    lines = unescape(found[1])
    assert lines.count("curl") == 2
    api = str(service.base_url).rstrip("/")
    script = f"API={api}\nAUTH='Authorization: Bearer {token}'\n{lines}"
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.count('"status":"queued"') == 2, (done.stdout, done.stderr)
    assert not (tmp_path / "ran").exists()


def test_every_method_is_offered_with_its_description(fitter: Local) -> None:
    words = check_page(fitter.get("/new-fit")).words
    for name, recipe in all_methods().items():
        assert f"{name} {recipe.summary}" in words
        assert recipe.cost in words
        assert recipe.reference in words
    assert len(re.findall(r"Needs segments ?: the segment of each row\.", words)) == 1
    chosen = [one.name for one in choices() if one.is_chosen]
    assert chosen == [DEFAULT_METHOD]
    assert {one.name for one in choices()} == set(all_methods())


def test_the_parameters_offered_are_those_that_a_method_has(fitter: Local) -> None:
    text = unescape(fitter.get("/new-fit").text)
    for one in choices():
        recipe = all_methods()[one.name]()
        if not one.parameters:
            assert f"params-{one.name}" not in text
            continue
        assert one.parameters in text
        assert make_recipe(one.name, json.loads(one.parameters)) == recipe


def test_the_name_is_filled_in_and_limits_are_shown(fitter: Local) -> None:
    page = fitter.get("/new-fit", params={"calibrator": "resnet50-prod"})
    assert 'value="resnet50-prod"' in page.text
    words = check_page(page).words
    assert "At most 3.0 MiB; CSV at most 1.0 MiB" in words
    assert '"$API/v1/calibrators/resnet50-prod/fits?method=auto"' in words
    assert "needs JavaScript" in words


def test_existing_names_can_be_chosen(fitter: Local) -> None:
    headers = {**NPZ, "X-CSRF-Token": csrf_of(fitter)}
    body = npz(*sample(60, 3))
    made = fitter.post(
        "/v1/calibrators/known/fits?method=temperature", content=body, headers=headers
    )
    assert made.status_code == 202
    assert '<option value="known">' in fitter.get("/new-fit").text


@pytest.mark.parametrize("name", [MARKUP, '"><script>alert(1)</script>', "x" * 200])
def test_an_invalid_name_is_shown_as_text(fitter: Local, name: str) -> None:
    page = fitter.get("/new-fit", params={"calibrator": name})
    shell = check_page(page)
    assert "img" not in shell.tags
    assert shell.tags.count("script") == 1
    assert "/v1/calibrators/my-model/fits" in shell.words
    assert fitter.get("/new-fit", params={"calibrator": "x" * 201}).status_code == 422


def test_the_token_on_the_form_lets_its_script_upload(fitter: Local) -> None:
    found = re.search(r'data-csrf="(\w{64})"', fitter.get("/new-fit").text)
    assert found
    body = npz(*sample(60, 3))
    assert fitter.post("/v1/datasets", content=body, headers=NPZ).status_code == 403
    headers = {**NPZ, "X-CSRF-Token": found[1]}
    assert fitter.post("/v1/datasets", content=body, headers=headers).is_success


def test_without_the_scope_there_is_no_link_to_it(service: Local, local: Local) -> None:
    with signed_in(service, Scope.PREDICT) as reader:
        assert reader.get("/new-fit").status_code == 403
        assert "new-fit" not in reader.get("/").text
    assert "./new-fit" in check_page(local.get("/", headers=HTML)).links
    assert 'data-csrf=""' in local.get("/new-fit", headers=HTML).text


@given(st.from_regex(r"[a-zA-Z0-9._\- ]{0,66}", fullmatch=True))
def test_the_form_takes_the_names_that_the_service_takes(name: str) -> None:
    assert bool(re.fullmatch(PATTERN, name)) == bool(NAME.fullmatch(name))


def test_the_page_has_the_hints_of_the_table(fitter: Local) -> None:
    listed = fitter.get("/new-fit").text.partition('<ul id="advice"')[2].partition("</ul>")[0]
    codes = re.findall(r'data-code="(\w+)"', listed)
    assert codes == [code for code, row in ERROR_CODES.items() if row.page]
    assert f'"nan">{ERROR_CODES["nan"].page}</li>' in listed
