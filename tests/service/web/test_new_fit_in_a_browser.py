"""New fit, the page of a fit and Try it in a real Chromium, from file to finished fit."""

from __future__ import annotations

import base64
import io
import itertools
import json
from collections.abc import Iterator

import numpy as np
import pytest
import safetensors.numpy
from helpers.browser import Tab, browser
from helpers.dashboard_pages import make_key
from helpers.format_samples import csv, npy
from helpers.live_service import Local, in_process, npz, sample
from helpers.workspace_contents import fitted_elsewhere
from playwright.sync_api import Locator, expect

from service.access.permissions import Scope
from service.storage.records import FitStatus

MARKUP = "<img src=x onerror=alert(1)>"
LOGITS, LABELS = sample(60, 3)
UNNAMED = b"a,b,c,label\n1,2,3,0\n"
# the console logs every refusal of the API
HARMLESS = ("Failed to load resource",)
JOINED = """async () => {
  const { joined, labelsFirst, readHeader } = await import('./static/npy.js');
  const pair = await Promise.all([...document.querySelector('#data').files].map(readHeader));
  const [labels, values] = labelsFirst(pair);
  const bytes = new Uint8Array(await joined('logits', values, labels).arrayBuffer());
  return btoa(String.fromCharCode(...bytes));
}"""
DROPPED = """(content) => {
  const bytes = Uint8Array.from(atob(content), (one) => one.charCodeAt(0));
  const files = new DataTransfer();
  files.items.add(new File([bytes], 'dropped.npz'));
  const area = document.querySelector('[data-drop=data]');
  area.dispatchEvent(new DragEvent('drop', { dataTransfer: files, bubbles: true }));
}"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Run a service without a worker."""
    with in_process(tmp_path_factory.mktemp("browser")) as made:
        made.post("/v1/calibrators/fashion/versions", json=fitted_elsewhere())
        yield made


@pytest.fixture(scope="module")
def signed_in_tab(service: Local) -> Iterator[Tab]:
    with browser() as tab:
        token = make_key(service, Scope.FIT, Scope.PREDICT)
        tab.open(f"{service.base_url}/sign-in")
        tab.page.get_by_label("API key").fill(token)
        tab.press("Sign in")
        expect(tab.page.get_by_role("heading", level=1)).to_have_text("Calibrators")
        yield tab


@pytest.fixture
def tab(signed_in_tab: Tab, service: Local) -> Iterator[Tab]:
    """Open a tab with the form; at the end its console must have no errors."""
    signed_in_tab.problems.clear()
    signed_in_tab.open(f"{service.base_url}/new-fit?calibrator=net")
    yield signed_in_tab
    assert not [one for one in signed_in_tab.problems if not one.startswith(HARMLESS)]


def choose(tab: Tab, files: dict[str, bytes], field: str = "Logits and labels") -> None:
    given = [
        {"name": name, "mimeType": "application/octet-stream", "buffer": content}
        for name, content in files.items()
    ]
    tab.page.get_by_label(field).set_input_files(given)


def trouble(tab: Tab) -> Locator:
    return tab.page.locator("#error")


def test_a_pair_of_npy_files_becomes_the_same_arrays(tab: Tab) -> None:
    for values, labels in itertools.product(("<f8", "<f4", "<f2", "<i4"), ("<i8", "<i4", "|u1")):
        logits, truth = (10 * LOGITS).astype(values), LABELS.astype(labels)
        choose(tab, {"labels.npy": npy(truth), "logits.npy": npy(logits)})
        found = safetensors.numpy.load(base64.b64decode(tab.page.evaluate(JOINED)))
        np.testing.assert_array_equal(found["logits"], logits)
        np.testing.assert_array_equal(found["labels"], truth)
        assert (found["logits"].dtype, found["labels"].dtype) == (logits.dtype, truth.dtype)


def objects() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([[1, None]], object), allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    ("logits", "told"),
    [
        (npy(np.asfortranarray(LOGITS)), "ascontiguousarray"),
        (objects(), "Python objects"),
        (npy(LOGITS.astype(">f4")), ">f4"),
        (npy(np.zeros(3, [("a", "<f4"), ("b", "<f4")])), "not supported here"),
        (npy(LOGITS)[:-1], "it may be incomplete"),
        (b"nonsense", "not an npy file"),
    ],
    ids=["Fortran", "objects", "big-endian", "structured", "cut", "no npy"],
)
def test_npy_files_that_cannot_be_joined_are_refused(tab: Tab, logits: bytes, told: str) -> None:
    choose(tab, {"logits.npy": logits, "labels.npy": npy(LABELS)})
    expect(trouble(tab)).to_contain_text("logits.npy cannot be read")
    expect(trouble(tab)).to_contain_text(told)


def test_files_that_do_not_belong_together_are_refused(tab: Tab) -> None:
    choose(tab, {"logits.npy": npy(LOGITS)})
    expect(trouble(tab)).to_contain_text("Choose logits.npy and labels.npy together")
    choose(tab, {"a.npy": npy(LOGITS), "b.npy": npy(LOGITS)})
    expect(trouble(tab)).to_contain_text("Rename that file to labels.npy")
    choose(tab, {"a.npz": b"", "b.csv": b""})
    expect(trouble(tab)).to_contain_text("Choose one file")
    choose(tab, {f"{MARKUP}.pkl": b""})
    expect(trouble(tab)).to_contain_text(f"{MARKUP}.pkl has an unsupported format")
    choose(tab, {"a.npz": npz(LOGITS, LABELS)})
    expect(trouble(tab)).to_be_hidden()


@pytest.mark.parametrize(
    ("files", "is_asked"),
    [
        ({"x.csv": csv(LOGITS, LABELS)}, False),
        ({"x.csv": b'\xef\xbb\xbf\r\nlabel,"P"\r\n1,0.5\r\n'}, False),
        ({"x.csv": b"Segment,label,p\nweb,1,0.5\n"}, False),
        ({"x.csv": UNNAMED}, True),
        ({"x.npz": npz(LOGITS, LABELS)}, False),
        ({"scores.npy": npy(LOGITS), "y.npy": npy(LABELS)}, True),
        ({"probs.npy": npy(LOGITS), "y.npy": npy(LABELS)}, False),
    ],
    ids=["CSV", "one column", "with segments", "other names", "npz", "npy", "named npy"],
)
def test_the_kind_is_requested_only_if_the_name_does_not_give_it(
    tab: Tab, files: dict[str, bytes], is_asked: bool
) -> None:
    tab.page.evaluate("document.querySelector('#kind').hidden = false")
    choose(tab, files)
    expect(tab.page.get_by_role("radio", name="probabilities")).to_be_visible(visible=is_asked)
    expect(trouble(tab)).to_be_hidden()


def test_the_kind_must_be_chosen_before_anything_is_sent(tab: Tab) -> None:
    choose(tab, {"x.csv": UNNAMED})
    tab.asked.clear()
    tab.press("Upload and fit")
    expect(trouble(tab)).to_contain_text("Choose logits or probabilities")
    assert not [one for one in tab.asked if "/v1/" in one]
    tab.page.get_by_role("radio", name="logits").check()
    tab.press("Upload and fit")
    tab.page.wait_for_url("**/jobs/fit_*")


def test_refusals_name_the_file_the_rule_and_the_rows_as_text(tab: Tab) -> None:
    broken = LOGITS.copy()
    broken[[7, 30]] = np.nan
    choose(tab, {f"{MARKUP}.npz": npz(broken, LABELS)})
    tab.press("Upload and fit")
    expect(tab.page.get_by_role("alert")).to_contain_text(f"{MARKUP}.npz was not accepted")
    for told in (
        "Logits must not be NaN.",
        "2 rows are invalid; the first is row 7",
        "Leave these rows out",
    ):
        expect(trouble(tab)).to_contain_text(told)
    expect(trouble(tab)).to_be_focused()
    tab.check_access()
    lines = csv(LOGITS, LABELS).decode().splitlines()
    lines[16] = f"1,{MARKUP},3,0"
    choose(tab, {"x.csv": "\n".join(lines).encode()})
    tab.press("Upload and fit")
    expect(trouble(tab)).to_contain_text(f"Line 17, column 'logit_1': '{MARKUP}' is not a number.")
    expect(tab.page.locator("img")).to_have_count(0)


def test_parameters_of_a_method_are_sent(tab: Tab, service: Local) -> None:
    choose(tab, {"x.npz": npz(LOGITS, LABELS)})
    tab.page.get_by_text("Parameters of auto").click()
    field = tab.page.get_by_label("Parameters of auto, as JSON")
    assert json.loads(field.input_value())["allow_class_change"] is False
    tab.asked.clear()
    field.fill("{'budget': 5}")
    tab.press("Upload and fit")
    expect(trouble(tab)).to_contain_text("The parameters of auto are not a JSON object")
    assert not [one for one in tab.asked if "/v1/" in one]
    field.fill('{"buget": 5}')
    tab.press("Upload and fit")
    expect(trouble(tab)).to_contain_text("Auto has no parameter 'buget'; did you mean 'budget'?")
    tab.check_access()
    field.fill('{"allow_class_change": true, "budget": 5}')
    tab.press("Upload and fit")
    tab.page.wait_for_url("**/jobs/fit_*")
    fit = tab.page.url.rpartition("/")[2].partition("#")[0]
    with service.app.state.parts.database.write() as store:
        ordered = store.fits.start(fit, worker="one", device="cpu").order["methods"]
    assert [one["method"] for one in ordered] == ["auto"]
    assert ordered[0]["params"].items() >= {"allow_class_change": True, "budget": 5}.items()


def test_uploaded_data_is_not_sent_again(tab: Tab) -> None:
    tab.page.get_by_label("Fingerprint").fill("x" * 200)
    tab.page.evaluate("document.querySelector('#model').value += 'x'")
    tab.page.evaluate(DROPPED, base64.b64encode(npz(LOGITS, LABELS)).decode())
    expect(tab.page.locator("#data-status")).to_contain_text("dropped.npz")
    tab.asked.clear()
    tab.press("Upload and fit")
    expect(trouble(tab)).to_contain_text("The fit was not submitted")
    tab.page.get_by_label("Fingerprint").fill("")
    tab.press("Upload and fit")
    tab.page.wait_for_url("**/jobs/fit_*")
    assert len([one for one in tab.asked if "/v1/datasets" in one]) == 1


def test_a_fit_is_submitted_watched_and_followed_to_its_result(tab: Tab, service: Local) -> None:
    choose(tab, {"logits.npy": npy(LOGITS), "labels.npy": npy(LABELS)})
    choose(tab, {"test.npz": npz(LOGITS[1:], LABELS[1:])}, "Evaluation data")
    tab.page.get_by_label("Fingerprint").fill("sha256:0f1e")
    tab.page.locator("input[value=temperature]").check()
    tab.press("Upload and fit")
    tab.page.wait_for_url("**/jobs/fit_*")
    expect(tab.page.locator("#fit-detail")).to_contain_text("waiting for a worker")
    tab.check_access()
    id = tab.page.url.rpartition("/")[2]
    parts = service.app.state.parts
    with parts.database.write() as store:
        fit = store.fits.start(id, worker="one", device="cpu")
        found = [store.datasets.get(fit.workspace, one) for one in (fit.dataset, fit.evaluation)]
    assert [(one.rows, one.format) for one in found] == [(60, "safetensors"), (59, "npz")]
    assert [one["method"] for one in fit.order["methods"]] == ["auto", "temperature"]
    assert (fit.calibrator_name, fit.order["model"]) == ("net", "sha256:0f1e")
    expect(tab.page.locator("#announcement")).to_have_text("Status of the fit: running.")
    with parts.database.write() as store:
        store.fits.finish(id, fit.attempt, FitStatus.SUCCEEDED, versions=[1, 2], progress=None)
    tab.page.wait_for_url("**/calibrators/net")
    tab.open(f"{service.base_url}/jobs/{id}")
    expect(tab.page.locator("#fit-detail")).to_contain_text(
        "The fit created version 1 (auto), version 2 (temperature)."
    )
    assert tab.page.url.endswith(id)  # a later visit is not redirected


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (380, True)])
def test_pages_are_open_to_all_in_the_width_there_is(
    tab: Tab, service: Local, width: int, dark: bool
) -> None:
    tab.open(f"{service.base_url}/new-fit", width=width, dark=dark)
    choose(tab, {"x.csv": UNNAMED})
    expect(tab.page.get_by_role("radio", name="logits")).to_be_visible()
    tab.check_width()
    tab.check_access()
    tab.keep_picture(f"new-fit-{width}")
    tab.open(f"{service.base_url}/calibrators/fashion/try", width=width, dark=dark)
    tab.press("Use an example")
    expect(tab.page.locator("tbody tr")).to_have_count(5)
    tab.check_width()
    tab.check_access()
    tab.keep_picture(f"try-{width}")


def test_without_javascript_there_are_lines_for_a_shell(tab: Tab, service: Local) -> None:
    browser_ = tab.page.context.browser
    assert browser_ is not None
    state = tab.page.context.storage_state()
    with browser_.new_context(java_script_enabled=False, storage_state=state) as plain:
        page = plain.new_page()
        page.goto(f"{service.base_url}/new-fit")
        assert "Uploading from this page needs JavaScript" in page.inner_text("main")
        expect(page.get_by_text("--data-binary @file.npz")).to_be_visible()
        expect(page.get_by_role("button", name="Upload and fit")).to_be_hidden()
        page.goto(f"{service.base_url}/calibrators/fashion/try")
        page.get_by_role("button", name="Use an example").click()
        expect(page.locator("tbody tr")).to_have_count(5)
