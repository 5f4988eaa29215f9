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
from rescind.core import params
from rescind.experiments.learning_run import start
from rescind.experiments.prepared_data import obtained
from rescind.flower.deploy import Link
from rescind.flower.recipe_cell import one_cell
from rescind.flower.silo.recommend import recommend

pytestmark = pytest.mark.flower


def test_two_silos_on_loopback_learn_what_one_process_learns(tmp_path: Path) -> None:
    with Machines(tmp_path, silos=2, rounds=1) as machines:
        made = machines.start("kit", "kit", "--silos", "2", "--out", "kit")
        assert made.wait(PATIENCE) == 0, machines.log("kit")
        machines.up("--kit", "kit/server")
        for silo in range(2):
            machines.join(silo, "--kit", f"kit/silo-{silo}")
        machines.run("--kit", "kit/operator")
        machines.finished()
        assert "known silos: silo-0, silo-1" in machines.log("up")
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    _, cell = one_cell(str(machines.recipe), None)
    here = start(replace(cell, sharing=None), obtained(cell)).run(1)
    there, _ = params.load(tmp_path / "out" / "model" / "public.safetensors")
    assert there.keys() == here.now.state.public.keys()
    for name, value in here.now.state.public.items():
        assert_close(there[name], value, rtol=1e-5, atol=1e-5)
    assert facts["metrics"]["test"] == pytest.approx(here.evaluate("test", cell.run.k), abs=1e-5)
    assert facts["silos"]["refused"] == {}
    user = int(here.world.available.nonzero().squeeze(1)[0])
    best = recommend(tmp_path / f"silo-{user % 2}", user, 3)
    assert [item for item, _ in best] == [int(r.item) for r in here.recommend(user, 3)]


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
