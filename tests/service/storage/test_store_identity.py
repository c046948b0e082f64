"""A database and its blob store belong together; any other pair is refused before it does harm."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from helpers.backends import Backend, Fleet
from helpers.commands import here
from helpers.fit_fixtures import Place
from helpers.live_service import ROOT
from helpers.raw_blobs import content, remove

from service.cli.open_store import prepared
from service.errors import Conflict, Invalid, Unavailable
from service.maintenance.sweep import sweep
from service.settings import Settings
from service.storage.blobs import Blobs
from service.storage.database import Database
from service.storage.store_identity import CHORE, ID_KEY, bind, check_bound, id_of

pytestmark = pytest.mark.both_backends

# a command whose blob store refuses access
UNREACHABLE = """
import sys
from service.__main__ import main
from service.storage import blobs

def refuse(*_):
    raise blobs.Unavailable("blobs_unavailable", "the blob store reports AccessDenied")

blobs.Blobs.peek = blobs.Blobs.list = refuse
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def settings(backend: Backend, tmp_path: Path) -> Settings:
    """Return the settings of a service whose database is bound to its blob store."""
    made = Settings(**backend.settings(tmp_path / "data"))
    prepared(made).close()
    return made


def test_both_sides_have_the_same_id_which_stays(settings: Settings) -> None:
    blobs = Blobs(settings.blobs)
    with closing(prepared(settings)) as database:
        first = id_of(database)
        assert content(blobs, ID_KEY).decode() == first != ""
    with closing(prepared(settings)) as database:
        assert id_of(database) == first


def test_another_blob_store_is_refused_with_both_settings(
    settings: Settings, tmp_path: Path
) -> None:
    other = Settings(
        data_dir=settings.data_dir,
        database_url=settings.database_url,
        blobs_url=(tmp_path / "other").as_uri(),
    )
    for _ in range(2):
        with pytest.raises(Conflict, match=r"--database-url.*--blobs-url") as refused:
            prepared(other)
        assert refused.value.code == "blob_store_differs"
    assert not list((tmp_path / "other").iterdir())
    prepared(other, adopt=True).close()
    prepared(other).close()
    with pytest.raises(Conflict):
        prepared(settings)


def test_the_database_of_another_store_is_refused(settings: Settings, tmp_path: Path) -> None:
    new = Settings(data_dir=tmp_path / "new", blobs_url=settings.blobs)
    with pytest.raises(Conflict, match="the database is empty, but the blob store"):
        prepared(new)
    with pytest.raises(Conflict, match="the database is empty, but the blob store"):
        prepared(new)


def test_a_store_with_blobs_but_without_an_id_refuses_a_new_database(
    place: Place, tmp_path: Path
) -> None:
    place.dataset()
    with pytest.raises(Conflict, match="but the blob store"):
        prepared(Settings(data_dir=tmp_path / "new", blobs_url=place.settings.blobs))


def test_an_earlier_installation_is_bound_unless_its_store_is_empty(
    place: Place, tmp_path: Path
) -> None:
    place.dataset()
    with pytest.raises(Conflict, match="it is empty"):
        bind(place.database, Blobs((tmp_path / "empty").as_uri()))
    bind(place.database, place.blobs)
    check_bound(place.database, place.blobs)


def test_an_interrupted_binding_is_completed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Blobs, "put", fail)
        with pytest.raises(KeyboardInterrupt):
            bind(place.database, place.blobs)
    bind(place.database, place.blobs)
    assert content(place.blobs, ID_KEY).decode() == id_of(place.database)


def test_a_lost_id_is_refused_until_it_is_adopted(settings: Settings) -> None:
    remove(Blobs(settings.blobs), ID_KEY)
    with pytest.raises(Conflict, match=f"it has no object `{ID_KEY}`"):
        prepared(settings)
    flags = [
        f"--{name.replace('_', '-')}={getattr(settings, name)}"
        for name in ("data_dir", "database_url", "blobs_url")
        if getattr(settings, name)
    ]
    found = json.loads(here("doctor", "--json", *flags).stdout.splitlines()[0])
    assert found["code"] == "blob_store_differs"
    assert "migrate --adopt" in found["advice"]
    assert here("migrate", "--adopt", *flags).returncode == 0
    assert here("doctor", *flags).returncode == 0


def test_a_store_that_does_not_respond_does_not_prevent_a_start(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise Unavailable("blobs_unavailable", "the blob store is not responding")

    monkeypatch.setattr(Blobs, "peek", fail)
    prepared(settings).close()


def test_postgresql_needs_the_url_of_the_blob_store(shared_fleet: Fleet, tmp_path: Path) -> None:
    given = {**shared_fleet.settings(tmp_path), "blobs_url": ""}
    with pytest.raises(Invalid, match="CALIBRD_BLOBS_URL"):
        prepared(Settings(**given))
    flags = [f"--data-dir={tmp_path}", f"--database-url={given['database_url']}"]
    for words in (["migrate"], ["worker"], ["doctor"], ["sweep"]):
        refused = here(*words, *flags)
        assert (refused.returncode, "CALIBRD_BLOBS_URL" in refused.stderr) == (2, True), words


def test_an_empty_database_file_beside_blobs_is_not_migrated(tmp_path: Path) -> None:
    with closing(Place(data_dir=tmp_path)) as place:
        place.dataset()
    for one in tmp_path.glob("calibrd.db*"):
        one.unlink()
    file = tmp_path / "calibrd.db"
    file.touch()
    for words in (["migrate"], ["worker"]):
        refused = here(*words, f"--data-dir={tmp_path}")
        assert refused.returncode == 2
        assert "the database is empty, but the blob store" in refused.stderr
    told = here("doctor", f"--data-dir={tmp_path}")
    assert told.returncode == 2
    assert "If it contained data, restore a backup" in told.stderr


def test_a_newer_database_is_named_by_commands_that_only_read(tmp_path: Path) -> None:
    prepared(Settings(data_dir=tmp_path)).close()
    url = Settings(data_dir=tmp_path).database
    with closing(Database(url)) as database, database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE calibrd_schema SET version_num = '9999'")
    told = here("doctor", f"--data-dir={tmp_path}")
    assert told.returncode == 2
    assert "start the version that created it, or a newer one" in told.stderr


def test_the_id_key_is_not_a_blob_of_unknown_origin(settings: Settings) -> None:
    with closing(prepared(settings)) as database:
        assert sweep(database, Blobs(settings.blobs), older_than=7200.0, dry_run=True).unknown == 0


def test_a_command_says_why_the_blob_store_was_not_checked(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNREACHABLE, "migrate", f"--data-dir={tmp_path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line == "blob_store_not_checked reason=the blob store reports AccessDenied"


def test_two_processes_that_start_at_the_same_time_bind_once(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second used to exit if the first bound both between its two reads."""
    settings = Settings(**backend.settings(tmp_path / "data"))
    with closing(prepared(settings)) as database:
        blobs = Blobs(settings.blobs)
        bound = id_of(database)
        with database.write() as store:
            store.chores.set_note(CHORE, "")
        remove(blobs, ID_KEY)
        peek, is_first = Blobs.peek, True

        def bind_before_peek(self: Blobs, key: str) -> bytes | None:
            nonlocal is_first
            if is_first:
                is_first = False
                bind(database, blobs)
            return peek(self, key)

        monkeypatch.setattr(Blobs, "peek", bind_before_peek)
        bind(database, blobs)
        assert id_of(database) == content(blobs, ID_KEY).decode() not in ("", bound)
