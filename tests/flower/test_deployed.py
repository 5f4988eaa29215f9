"""One real deployment as in the manual: TLS, registered keys, two silos, one round."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from torch.testing import assert_close

pytest.importorskip("flwr")

from flower.deployments import PATIENCE, Machines
from flower.served import SHOP
from rescind.core import params
from rescind.data import import_file
from rescind.experiments.learning_run import start
from rescind.experiments.prepared_data import obtained
from rescind.flower.deploy import Link
from rescind.flower.recipe_cell import one_cell
from rescind.flower.silo.recommend import recommend_to

pytestmark = pytest.mark.flower


PEOPLE = [f"K1000{n}" for n in range(10, 34)]
ITEMS = [f"SKU-0{n}" for n in range(300, 320)]
ASKS, OF = PEOPLE[7], ITEMS[7]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Import a table with ids that stand nowhere by chance. Return its recipe."""
    monkeypatch.setenv("RESCIND_CACHE", str(tmp_path / "cache"))
    lines = [
        f"{user},{ITEMS[(n + k * (1 + n % 3)) % len(ITEMS)]}"
        for n, user in enumerate(PEOPLE)
        for k in range(8)
    ]
    (tmp_path / "shop.csv").write_text("\n".join(["user,item", *lines]) + "\n")
    import_file(tmp_path / "shop.csv", "shop")
    return SHOP.replace("rounds = 3", "rounds = 1").replace("every = 3", "every = 1")


def naming(folder: Path) -> set[str]:
    """Return the files below a folder in whose bytes somebody's request stands, or stood."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and any(name.encode() in path.read_bytes() for name in (ASKS, OF))
    }


def test_two_silos_on_loopback_learn_what_one_process_learns_and_forget(
    tmp_path: Path, recipe: str
) -> None:
    """Of a request the server keeps no more than its papers, and the silos only what they said.

    Its database is looked into while it is open and after `up` has ended, which moves its log.
    """
    with Machines(tmp_path, silos=2, recipe=recipe) as machines:
        made = machines.start("kit", "kit", "--silos", "2", "--out", "kit")
        assert made.wait(PATIENCE) == 0, machines.log("kit")
        machines.up("--kit", "kit/server")
        for silo in range(2):
            machines.join(silo, "--kit", f"kit/silo-{silo}")
        machines.run("--kit", "kit/operator")
        machines.finished()
        assert "known silos: silo-0, silo-1" in machines.log("up")
        learnt_as_in_one_process(machines)
        machines.run(
            "--kit", "kit/operator", "--user", ASKS, "--item", OF, "--unlearner", "Retrain"
        )
        machines.finished()
        assert "  ERASED  " in machines.log("run")
        state = tmp_path / "flower"
        assert (state / "state.db-wal").is_file(), "the control: the database is open"
        assert naming(state) == set()
        assert modes(state) == {"flower": 0o700, "state.db": 0o600, "state.db-shm": 0o600,
                                "state.db-wal": 0o600, "superexec.key": 0o600}  # fmt: skip
        machines.terminate("up")
        for silo in range(2):
            machines.terminate(f"silo-{silo}")
    assert naming(state) == set()
    assert naming(tmp_path) == {"shop.csv"}, "the control: the scan finds names"


def modes(state: Path) -> dict[str, int]:
    """Return who may read the server's folder, and the files in it."""
    found = (state, *(path for path in state.iterdir() if path.is_file()))
    return {path.name: path.stat().st_mode & 0o777 for path in found}


def learnt_as_in_one_process(machines: Machines) -> None:
    out = machines.folder / "out"
    facts = json.loads((out / "run.json").read_text())
    _, cell = one_cell(str(machines.recipe), None)
    here = start(replace(cell, sharing=None), obtained(cell)).run(1)
    there, _ = params.load(out / "model" / "public.safetensors")
    assert there.keys() == here.now.state.public.keys()
    for name, value in here.now.state.public.items():
        assert_close(there[name], value, rtol=1e-5, atol=1e-5)
    assert facts["metrics"]["test"] == pytest.approx(here.evaluate("test", cell.run.k), abs=1e-5)
    assert facts["silos"]["refused"] == {}
    user = int(here.world.available.nonzero().squeeze(1)[0])
    best = recommend_to(machines.folder / f"silo-{user % 2}", PEOPLE[user], 3)
    assert [one.item for one in best] == [one.item for one in here.recommend(PEOPLE[user], 3)]


def test_a_server_on_all_hosts_is_reached_at_loopback_from_its_own_machine() -> None:
    """The certificate has no entry for 0.0.0.0."""
    assert Link("0.0.0.0", 7).near == Link("127.0.0.1", 7)
    assert Link("server.example", 7).near == Link("server.example", 7)


def test_nothing_starts_without_keys_by_default(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rescind.cli", "flower", "up", "--state", str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 2
    assert "--kit" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "s").exists()
