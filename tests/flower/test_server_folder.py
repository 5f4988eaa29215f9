"""What stays on the server of a request: nothing in Flower's database, in no form, at no time."""

from __future__ import annotations

import os
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.superlink import extensions
from flwr.superlink.config_loader import (
    get_federation_manager,
    get_objectstore_linkstate_factories,
)
from sqlalchemy import LargeBinary

from flower.deployments import RECIPE
from rescind.cli.flower import app
from rescind.core.files import locked
from rescind.errors import ConfigError, DataError
from rescind.flower import apps, deploy
from rescind.flower.deploy import Link, Operator
from rescind.flower.handed_over import hand_over, remove_untaken, taken
from rescind.flower.run_request import ASKED, RunRequest
from rescind.flower.server_folder import DATABASE, Sealed, opened
from rescind.flower.superlink import Gate, Guests
from rescind.flower.wire import flwr_private
from rescind.requests.words import Words

pytestmark = pytest.mark.flower

EVE, ITEM = "K100073", "SKU-00361"


def naming(folder: Path) -> set[str]:
    """Return the files below a folder in whose bytes Eve or her item stands, read or deleted."""
    names = EVE.encode(), ITEM.encode()
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.name for path in files if any(name in path.read_bytes() for name in names)}


def asked_of(folder: Path) -> RunRequest:
    requests = (Words("erase", {EVE: (ITEM,)}),)
    return RunRequest(str(folder / "recipe.toml"), 2, str(folder / "out"), requests=requests)


# -- the settings of a run -------------------------------------------------------------------------


def test_only_the_owner_reads_the_settings_of_a_run_and_the_server_takes_them_away(
    tmp_path: Path,
) -> None:
    path = hand_over(asked_of(tmp_path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert naming(tmp_path) == {path.name}, "the control: a scan finds them until then"
    assert taken(path) == asked_of(tmp_path)
    assert not [*(tmp_path / "out").iterdir()]
    with pytest.raises(DataError, match=r"not there any more.*Give the command again"):
        taken(path)


def test_settings_that_no_server_took_do_not_stay(tmp_path: Path) -> None:
    first, second = hand_over(asked_of(tmp_path)), hand_over(asked_of(tmp_path))
    assert [*(tmp_path / "out").iterdir()] == [second] != [first]
    remove_untaken(tmp_path / "out")
    assert naming(tmp_path) == set()


def test_a_server_gets_the_place_of_the_settings_and_none_of_a_run_it_refuses(
    tmp_path: Path,
) -> None:
    there, sent = list[set[str]](), list[bytes]()

    class Answering(Operator):
        def _ask(self, verb: str, request: Any) -> Any:
            there.append(naming(tmp_path))
            sent.append(request.SerializeToString())
            if len(sent) == 1:
                return SimpleNamespace(run_id=7)
            raise DataError("refused")

    operator = Answering(Link(), None)
    assert operator.submit(asked_of(tmp_path)) == 7
    left = naming(tmp_path)
    with pytest.raises(DataError, match="refused"):
        operator.submit(asked_of(tmp_path))
    assert [len(names) for names in (*there, left, naming(tmp_path))] == [1, 1, 1, 0]
    assert all(b"asked-" in body and EVE.encode() not in body for body in sent)


def test_a_run_whose_server_is_gone_leaves_no_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE.format(rounds=1))
    monkeypatch.setattr(Operator, "_ask", lambda *_: SimpleNamespace(run_id=7))

    def gone(*_: object) -> None:
        assert len(naming(tmp_path)) == 1, "the control: it waits for the server"
        raise DataError("the server is gone")

    monkeypatch.setattr("rescind.flower.waiting.wait_for", gone)
    words = ["run", str(tmp_path / "recipe.toml"), "--silos", "2", "--insecure"]
    words += ["--out", str(tmp_path / "out"), "--user", EVE, "--item", ITEM]
    done = CliRunner().invoke(app, words)
    assert "the server is gone" in str(done.exception)
    assert naming(tmp_path) == set()


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], str]:
    """Return a function that lets the server's app fail, and returns what Flower would keep."""

    def fails(error: Exception) -> str:
        def serve(*_: object) -> None:
            raise error

        monkeypatch.setattr("rescind.flower.server.serve.serve", serve)
        config = {ASKED: str(hand_over(asked_of(tmp_path)))}
        context = Context(1, 1, {}, RecordDict(), config)
        with pytest.raises(apps.RunFailedError) as raised:
            apps.main(None, context)
        return "".join(traceback.format_exception(raised.value))

    logger = apps.logging.getLogger("rescind")
    before = logger.handlers[:], logger.level, logger.propagate
    yield fails  # type: ignore[misc]
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.mark.parametrize("kind", [DataError, KeyError])
def test_what_flower_is_told_of_a_failure_names_nobody(
    kind: type[Exception], failing: Callable[[Exception], str], tmp_path: Path
) -> None:
    kept, out = failing(kind(f"no silo knows user '{EVE}'")), tmp_path / "out"
    assert EVE not in kept
    assert f"{kind.__name__}; {out / 'error.txt'} says why" in kept
    assert EVE in (out / "error.txt").read_text(), "the control: the operator is told"
    log = (out / "server.log").read_text()
    assert EVE not in log
    assert ("in serve" in log) == (kind is KeyError), "where, of what nobody expected"


def test_a_run_without_settings_is_refused(tmp_path: Path) -> None:
    for place in ("", "asked.json", str(tmp_path / "nowhere" / "asked.json")):
        with pytest.raises(ConfigError, match="no settings"):
            apps.main(None, Context(1, 1, {}, RecordDict(), {ASKED: place}))


# -- messages --------------------------------------------------------------------------------------


@pytest.fixture
def sealed() -> Iterator[Callable[[bool], None]]:
    """Return a function that says whether messages are sealed; afterwards they are as before."""
    before = flwr_private.StoredObject.__table__.c.content.type

    def choose(seal: bool) -> None:
        flwr_private.set_object_type(Sealed() if seal else LargeBinary())

    yield choose
    flwr_private.set_object_type(before)


def stored(store: SqlObjectStore, run: int = 1) -> dict[str, bytes]:
    """Store what a message asks a silo, as on the way to it. Return its parts."""
    facts = ConfigRecord({"json": f'{{"users": ["{EVE}"], "items": ["{ITEM}"]}}'})
    content = RecordDict({"facts": facts})
    store.preregister(run, get_object_tree(content))
    parts = {name: one.deflate() for name, one in get_all_nested_objects(content).items()}
    assert {store.get(name) for name in parts} == {b""}, "they are on their way"
    for name, part in parts.items():
        store.put(name, part)
    return parts


@pytest.mark.parametrize("seal", [False, True], ids=["as Flower does it", "sealed"])
def test_a_message_in_the_database_is_sealed(
    seal: bool, sealed: Callable[[bool], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed(seal)
    store = SqlObjectStore(str(tmp_path / DATABASE))
    store.initialize()
    parts = stored(store)
    assert {name: store.get(name) for name in parts} == parts
    assert bool(naming(tmp_path)) is not seal, "the control: Flower alone names her"
    if seal:
        fresh = Sealed._box.generate_key()
        monkeypatch.setattr(Sealed, "_box", type(Sealed._box)(fresh))
        assert {store.get(name) for name in parts} == {None}, "another process cannot read it"


# -- what is left when the server starts -----------------------------------------------------------


def link_state(database: Path) -> Any:
    return get_objectstore_linkstate_factories(
        str(database), get_federation_manager(is_simulation=False)
    )[1].state()


@pytest.fixture
def earlier(tmp_path: Path, sealed: Callable[[bool], None]) -> tuple[Path, int]:
    """Return the folder of a server of an earlier version, and the number of a run in it."""
    sealed(False)
    folder = tmp_path / "flower"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    state = link_state(folder / DATABASE)
    settings = {ASKED: asked_of(tmp_path).to_json()}
    run = int(state.create_run("rescind/rescind-run", "1.0.0", "", settings, "", None, "",
                               TaskType.SERVER_APP))  # fmt: skip
    (found,) = state.get_run_info(run_ids=[run])
    context = Context(run, SUPERLINK_NODE_ID, {}, RecordDict(), settings)
    state.set_run_series_context(found.series_id, context)
    state.create_node("", "", b"the key of silo 0", 30.0)
    stored(state.object_store, run)
    for shared in (state, state.object_store):
        shared._engine.dispose()
    return folder, run


def test_what_an_earlier_server_left_is_removed_before_the_next_one_starts(
    earlier: tuple[Path, int],
) -> None:
    folder, run = earlier
    assert naming(folder), "the control: it is there"
    with closing(sqlite3.connect(folder / DATABASE)) as open_:
        open_.execute("DELETE FROM objects")
        open_.commit()
    with opened(folder) as database:
        assert naming(folder) == set(), "nor in pages that are free"
        with pytest.raises(DataError, match="in use"), opened(folder):
            pass
    assert folder.stat().st_mode & 0o777 == 0o700
    assert database.stat().st_mode & 0o777 == 0o600
    state = link_state(database)
    assert state.get_node_id_by_public_key(b"the key of silo 0"), "silos are known"
    (found,) = state.get_run_info(run_ids=[run])
    assert (found.status.status, found.override_config) == ("pending", {})


def test_a_run_that_was_going_on_is_stopped_when_the_server_starts_again(
    earlier: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings are gone, so it must not be started."""
    folder, run = earlier
    for name in ("get_middleware", "configure_app"):
        monkeypatch.setattr(extensions, name, getattr(extensions, name))  # restored after the test
    with opened(folder) as database:
        state = link_state(database)
    flwr_private.set_gate(Gate, Guests(), ())
    factory = SimpleNamespace(state=lambda: state)
    extensions.configure_app(SimpleNamespace(state=SimpleNamespace(linkstate_factory=factory)))
    (found,) = state.get_run_info(run_ids=[run])
    assert (found.status.status, found.status.sub_status) == ("finished", "stopped")


def test_a_folder_with_other_files_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "kit").mkdir()
    tmp_path.chmod(0o755)
    with opened(tmp_path):
        pass
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    with opened(tmp_path / "new"):
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_a_database_that_is_broken_is_named(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(os.urandom(5000))
    with pytest.raises(DataError, match="may have requests of earlier runs"), opened(tmp_path):
        pass


def test_a_second_server_on_a_folder_is_refused_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy, "check_free", lambda *_: None)
    state = tmp_path / "flower"
    state.mkdir()
    with locked(state):
        done = CliRunner().invoke(app, ["up", "--insecure", "--state", str(state)])
    assert "in use" in str(done.exception)
    assert not [*state.iterdir()]
