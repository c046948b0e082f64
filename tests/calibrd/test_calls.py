"""The effect of each call, and its errors."""

from __future__ import annotations

import dataclasses
import signal
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from helpers.live_service import Local, Running, in_process, sample
from helpers.refusals import refused

import calibrd
from calibrators import CalibrationSet
from calibrators.fitting.evaluation import fit_and_judge
from calibrators.methods.temperature import TemperatureMap, TemperatureScaling
from calibrd import errors
from calibrd.api import predictions
from calibrd.progress import FitProgress

LOGITS, LABELS = sample(seed=5)
FITTED, REPORT = fit_and_judge(TemperatureScaling(), CalibrationSet(LOGITS, LABELS))


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """Run a service without workers, so that fits stay queued."""
    with in_process(tmp_path_factory.mktemp("idle")) as local:
        yield local


@pytest.fixture
def waiting(idle: Local) -> Iterator[calibrd.Client]:
    """A client of the service without workers."""
    with calibrd.Client(str(idle.base_url)) as made:
        yield made


def test_promote_with_the_expected_revision(client: calibrd.Client) -> None:
    client.register("moves", FITTED, REPORT)
    client.register("moves", FITTED)
    first = client.promote("moves", 1, expected=0, reason="the first")
    assert (first.version, first.revision) == (1, 1)
    with refused("alias_has_moved") as raised:
        client.promote("moves", 1, expected=0)
    assert raised.value.status == 412
    with refused("needs_force", match="force=True, reason="):
        client.promote("moves", 2, expected=1)
    second = client.promote("moves", 2, expected=1, force=True, reason="no report, but tried out")
    assert second.revision == 2
    with refused("alias_has_moved"):
        client.promote("moves", 1, expected=1)

    with refused("alias_has_moved"):
        client.rollback("moves", expected=1)
    assert client.rollback("moves", reason="it was worse", expected=2).version == 1
    with refused("nothing_to_roll_back"):
        client.rollback("moves")
    moves = client.history("moves")
    assert [(one.from_version, one.to_version) for one in moves] == [(2, 1), (1, 2), (None, 1)]
    assert moves[0].reason == "it was worse"
    assert [one.rollback for one in moves] == [True, False, False]
    assert [one.forced for one in moves] == [False, True, False]
    assert client.history("moves", limit=1) == moves[:1]
    assert client.get_alias("moves").revision == 3


def test_a_missing_alias(client: calibrd.Client) -> None:
    client.register("bare", FITTED)
    for ask in (
        lambda: client.get_alias("bare"),
        lambda: client.history("bare"),
        lambda: client.rollback("bare"),
        lambda: client.predict("bare", LOGITS),
        lambda: client.report("bare@production"),
    ):
        with refused("no_such_alias"):
            ask()
    with refused("no_such_version", match=r"client\.versions"):
        client.promote("bare", 7)
    with refused("no_such_calibrator"):
        client.promote("nobody", 1)


def test_annotate(client: calibrd.Client) -> None:
    client.register("noted", FITTED, tags={"git": "1a2b"}, description="a first try")
    noted = client.annotate("noted@1", tags={"git": "3c4d"})
    assert (noted.tags, noted.description) == ({"git": "3c4d"}, "a first try")
    assert client.annotate(noted, description="").description == ""
    with refused("no_report"):
        client.report("noted@1")


def test_several_methods_make_several_versions(client: calibrd.Client) -> None:
    ordered = client.start_fit(
        "several",
        LOGITS,
        LABELS,
        methods=["identity", ("temperature", {})],
        model="sha256:0f1e",
        tags={"run": "7"},
        progress=False,
    )
    done = client.wait(ordered.id, progress=False)
    assert done.versions == [1, 2]
    newest, oldest = client.versions("several")
    assert (oldest.method, newest.method) == ("identity", "temperature")
    assert newest.tags == {"run": "7"}
    assert newest.fit == ordered.id
    with refused("model_mismatch"):
        client.predict("several@2", LOGITS, model="sha256:ffff")
    assert client.predict(newest, LOGITS, model="sha256:0f1e").shape == LOGITS.shape
    with refused("fit_is_final"):
        client.cancel(ordered)


def test_invalid_fit_requests_are_refused(client: calibrd.Client) -> None:
    dataset = client.upload(LOGITS, LABELS, progress=False)
    for asked, code in (
        ({"method": "temprature"}, "unknown_method"),
        ({"method": "smart", "params": {"stps": 1}}, "unknown_parameter"),
        ({"method": "smart", "params": {"steps": -1}}, "bad_parameter"),
        ({"evaluation": dataset}, "evaluation_is_the_dataset"),
        ({"dataset": "ds_none"}, "no_such_dataset"),
        ({"device": "gpu"}, "no_gpu"),
    ):
        with refused(code) as raised:
            client.fit("refused", **{"dataset": dataset, **asked})
        assert raised.value.request_id
    with pytest.raises(TypeError, match="not both"):
        client.fit("refused", LOGITS, LABELS, dataset=dataset)
    with pytest.raises(ValueError, match="characters from a-z"):
        client.fit("Not a name", LOGITS, LABELS)


def test_arguments_that_an_existing_dataset_excludes(client: calibrd.Client) -> None:
    for given in ({"delete_after_fit": True}, {"kind": "probabilities"}):
        with pytest.raises(TypeError, match="logits that this call uploads"):
            client.start_fit("refused", dataset="ds_1", **given)


def test_a_reference_is_not_a_name() -> None:
    with calibrd.Client("http://127.0.0.1:9", retry_seconds=0) as nowhere:  # nothing is sent
        for ask in (
            lambda name: nowhere.fit(name, LOGITS, LABELS),
            lambda name: nowhere.register(name, FITTED),
            lambda name: nowhere.promote(name, 1),
            nowhere.rollback,
            nowhere.history,
            nowhere.get_alias,
            nowhere.get_calibrator,
            nowhere.versions,
        ):
            with pytest.raises(ValueError, match="without '@', got 'm@3'"):
                ask("m@3")


def test_numbers_of_numpy_are_sent(waiting: calibrd.Client) -> None:
    params = {"steps": np.int64(3), "learning_rate": np.float32(0.5)}
    fit = waiting.start_fit("numpys", LOGITS, LABELS, methods=[("smart", params)], seed=np.int32(7))
    assert fit.seed == 7
    assert fit.methods[0]["params"].items() >= {"steps": 3, "learning_rate": 0.5}.items()
    with pytest.raises(TypeError, match="cannot be sent as JSON"):
        waiting.start_fit("numpys", dataset=fit.dataset, methods=[("smart", {"steps": {3}})])
    circular: dict[str, object] = {}
    circular["budget"] = circular
    with pytest.raises(ValueError, match="Circular reference"):
        waiting.start_fit("numpys", dataset=fit.dataset, methods=[("auto", circular)])
    for endless in (np.inf, np.float32("inf")):
        with pytest.raises(ValueError, match=r"methods\[0\]\.params\.budget must be a finite"):
            waiting.start_fit(
                "numpys", dataset=fit.dataset, methods=[("auto", {"budget": endless})]
            )
    with pytest.raises(
        TypeError, match=r"evaluation must be a Dataset returned by upload\(\), or its id"
    ):
        waiting.start_fit("numpys", dataset=fit.dataset, evaluation=(LOGITS, LABELS))


def test_the_bar_of_a_fit_shows_step_and_loss(
    waiting: calibrd.Client,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    fit = waiting.start_fit("shown", LOGITS, LABELS, methods=["temperature"], progress=False)
    told = {"method": "smart", "methods_done": 0, "methods": 1, "step": 420, "total": 2000}
    with FitProgress(fit, shown=True) as bar:
        assert "waiting for a worker" in capsys.readouterr().err
        bar.show(dataclasses.replace(fit, status="running", progress={**told, "loss": 0.51234}))
    last = capsys.readouterr().err.split("\r")[-1]
    assert last.startswith("shown:  21%")
    assert "method=smart, step=420/2000, loss=0.5123]" in last


def test_a_failed_fit_has_a_reason(client: calibrd.Client) -> None:
    few = client.upload(LOGITS[:3], LABELS[:3], progress=False)
    with pytest.raises(errors.FitFailed) as raised:
        client.fit("failing", dataset=few, method="temperature", progress=False)
    assert raised.value.code == "too_few_rows"
    assert raised.value.fit == client.fits(calibrator="failing", status="failed")[0].id
    assert "hint: provide more rows" in str(raised.value)
    with pytest.raises(errors.FitFailed):
        client.wait(raised.value.fit)


def test_wait_times_out_and_the_fit_continues(waiting: calibrd.Client) -> None:
    ordered = waiting.start_fit("patient", LOGITS, LABELS, progress=False)
    with pytest.raises(errors.WaitedTooLong, match=rf"client\.wait\('{ordered.id}'\)"):
        waiting.wait(ordered, timeout=0.2, progress=False)
    assert waiting.get_fit(ordered.id).status == "queued"
    threading.Timer(0.3, waiting.cancel, [ordered.id]).start()
    with pytest.raises(errors.FitWasCancelled):
        waiting.wait(ordered, progress=False)
    assert waiting.cancel(ordered).status == "cancelled"


def test_ctrl_c_leaves_the_fit_running(waiting: calibrd.Client) -> None:
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.5, signal.pthread_kill, [main, signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt) as raised:
        waiting.fit("interrupted", LOGITS, LABELS, progress=False)
    (fit,) = waiting.fits(calibrator="interrupted")
    assert fit.status == "queued"
    (note,) = raised.value.__notes__
    assert f"fit {fit.id} continues" in note
    assert f"client.wait('{fit.id}')" in note
    waiting.cancel(fit)


def test_readiness_names_the_failing_part(client: calibrd.Client, waiting: calibrd.Client) -> None:
    found = waiting.ready()
    assert not found
    assert found.workers == "no live worker: fits have to wait"
    assert (found.database, found.blobs) == ("ok", "ok")
    client.wait(client.start_fit("ready", LOGITS, LABELS, methods=["identity"]), progress=False)
    assert client.ready()


def test_keys_and_their_scopes(tmp_path_factory: pytest.TempPathFactory) -> None:
    with in_process(tmp_path_factory.mktemp("keys")) as local:
        url = str(local.base_url)
        with calibrd.Client(url) as anyone:
            made = anyone.create_key("root", ["admin"], days=3)
            assert made.token not in repr(made)
            with refused("key_required", match="CALIBRD_API_KEY"):
                anyone.upload(LOGITS, LABELS)
        with calibrd.Client(url, "cal_nobody") as stranger:
            with refused("invalid_key"):
                stranger.upload(LOGITS, LABELS)
            assert "nobody" not in repr(stranger)
        with calibrd.Client(url, made.token) as root:
            narrow = root.create_key("narrow", ["predict"])
            new = root.rotate_key(narrow.key.id, grace_hours=0)
            known = root.keys()
            assert {key.name for key in known} == {"root", "narrow"}
            with refused("no_such_key"):
                root.revoke_key("nobody")
            with refused("invalid_request"):
                root.create_key("broad", ["everything"])
            with calibrd.Client(url, new.token) as weak:
                with refused("missing_scope") as raised:
                    weak.upload(LOGITS, LABELS)
                assert raised.value.details["scope"] == "fit"
                assert weak.calibrators() == []
                assert root.revoke_key(new.key.id).revoked_at is not None
                with refused("key_has_ended"):
                    weak.calibrators()


def test_predict_in_blocks_and_with_labels(client: calibrd.Client) -> None:
    client.register("blocks", FITTED)
    many = np.repeat(LOGITS, 200, axis=0)  # 2.4 MB
    found = client.predict("blocks@1", many.astype(np.float64))
    assert np.allclose(found, np.repeat(FITTED.apply(LOGITS), 200, axis=0), atol=1e-6)
    report = client.evaluate("blocks@1", LOGITS, LABELS)
    whole = client.evaluate("blocks@1", np.round(LOGITS).astype(int).tolist(), LABELS)
    assert whole.n == report.n
    assert report.n == len(LABELS)
    with refused("wrong_classes"):
        client.predict("blocks@1", LOGITS[:, :3])


def test_predict_names_a_row_by_its_place_in_all(
    client: calibrd.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions, "BLOCK_BYTES", 100 * LOGITS[0].nbytes * predictions.WIDEST)
    client.register("named-rows", FITTED)
    for row in (20, 250):
        broken = LOGITS.copy()
        broken[row, 1] = np.nan
        with pytest.raises(errors.Invalid, match=rf"first row {row}\b") as caught:
            client.predict("named-rows@1", broken)
        assert (caught.value.code, caught.value.details["first"]) == ("nan", row)
    assert "rows 200 to 299 were checked" in str(caught.value)


def test_predict_takes_numbers_without_rows(
    client: calibrd.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = TemperatureMap(k=2, temperature=2.0)
    client.register("two-classes", binary)
    client.register("five-classes", FITTED)
    numbers = np.array([2.0, 0.5])
    assert np.allclose(client.predict("two-classes@1", numbers), binary.apply(numbers))
    assert np.allclose(client.predict("five-classes@1", LOGITS[0]), FITTED.apply(LOGITS[:1]))
    monkeypatch.setattr(predictions, "BLOCK_BYTES", 1024)
    many = np.linspace(-3, 3, 500)
    assert np.allclose(client.predict("two-classes@1", many), binary.apply(many))


def test_lists_are_read_to_their_end(client: calibrd.Client, service: Running) -> None:
    for _ in range(3):
        client.register("listed", FITTED)
    assert [one.number for one in client.versions("listed")] == [3, 2, 1]
    assert [one.number for one in client.versions("listed", limit=2)] == [3, 2]
    assert client.versions("listed", limit=0) == []
    assert client.get_calibrator("listed").latest == 3
    assert "listed" in [one.name for one in client.calibrators()]
