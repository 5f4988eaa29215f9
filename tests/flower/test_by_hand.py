"""Slow tests (`pytest -m slow tests/flower`): killed machines, and keys that are not registered."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from torch.testing import assert_close

pytest.importorskip("flwr")

from flower.deployments import PATIENCE, Machines, left_below, until
from flower.whole_recipes import FORGETTING, LEARNING, LENDING, WHOLE, in_process
from rescind.core import params
from rescind.flower.certificates import make_kit

pytestmark = [pytest.mark.flower, pytest.mark.slow]


def rounds_of(machines: Machines) -> list[int]:
    """Return the rounds with a checkpoint."""
    found = (machines.folder / "out" / "checkpoints").glob("round-*.safetensors")
    return sorted(int(path.stem.split("-")[1]) for path in found)


def assert_like_one_process(machines: Machines, atol: float = 1e-5) -> None:
    """Check that no reply was refused and the model is equal to that of one process."""
    facts = json.loads((machines.folder / "out" / "run.json").read_text())
    assert facts["silos"]["refused"] == {}
    there, _ = params.load(machines.folder / "out" / "model" / "public.safetensors")
    for name, value in in_process(machines.recipe).items():
        assert_close(there[name], value, rtol=1e-5, atol=atol)


def test_a_silo_that_is_killed_misses_rounds_and_comes_back(tmp_path: Path) -> None:
    """The round closes with the sum of the others. With the same key it is the same silo."""
    with Machines(tmp_path, silos=2, rounds=8) as machines:
        machines.up("--insecure")
        for silo in range(2):
            machines.join(silo, "--insecure")
        machines.run("--insecure", "--deadline", "60", "--least", "0.5")
        until(lambda: bool(rounds_of(machines)), "the first round")
        victim = machines.processes.pop("silo-1")
        os.killpg(victim.pid, signal.SIGKILL)
        at = rounds_of(machines)[-1]
        until(lambda: max(rounds_of(machines), default=99) > at, "a round without it")
        machines.join(1, "--insecure")
        machines.finished()
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert facts["round"] == 8
    assert facts["refused"]
    assert sum(facts["silos"]["refused"].values()) >= 1
    log = (tmp_path / "out" / "server.log").read_text()
    assert "round 8: 40 clients, refused {}" in log, log  # all clients are in the last round


def test_a_server_that_is_killed_resumes(tmp_path: Path) -> None:
    """`up` and all it started are killed in a round. Whoever waits is told, and what to do works.

    The resumed run counts no reply twice.
    """
    with Machines(tmp_path, silos=2, rounds=6) as machines:
        machines.up("--insecure")
        for silo in range(2):
            machines.join(silo, "--insecure")
        machines.run("--insecure")
        until(lambda: len(rounds_of(machines)) > 1, "two rounds")
        for process in left_below(tmp_path / "flower"):
            os.kill(int(process), signal.SIGKILL)
        machines.stop("up", signal.SIGKILL)
        run = machines.processes.pop("run")
        assert run.wait(PATIENCE) == 2, machines.log("run")
        assert f"the server at {machines.server} is gone" in machines.log("run")
        lost = f"the server at {machines.server} does not answer"
        until(lambda: machines.log("silo-0").count(lost) == 1, "the line of a silo")
        machines.up("--insecure")
        machines.run("--insecure", "--resume")
        machines.finished()
        assert machines.log("silo-0").count(lost) == 1
    assert_like_one_process(machines)


@pytest.mark.parametrize("unlearner", ["FedShareUnlearn", "Retrain"])
def test_a_server_that_is_killed_while_it_forgets_resumes_the_request(
    unlearner: str, tmp_path: Path
) -> None:
    """The SuperLink and the run are killed during the unlearner's rounds."""
    recipe = LENDING + LEARNING + FORGETTING.format(name=unlearner)
    if unlearner == "FedShareUnlearn":
        recipe += "rounds = 3\nlearner = { snapshots = 1 }\n"
    with Machines(tmp_path, silos=2, recipe=recipe) as machines:
        machines.up("--insecure")
        for silo in range(2):
            machines.join(silo, "--insecure")
        machines.run("--insecure")
        journal = tmp_path / "out" / "forgetting" / "stand-001" / "heard-"  # of the recipe
        until(lambda: len(list(journal.glob("exchange-*"))) > 1, "a round of the unlearner")
        for name in ("run", "up"):
            machines.stop(name, signal.SIGTERM)
        assert len(list(journal.glob("exchange-*"))) > 1, "the request was over already"
        machines.up("--insecure")
        machines.run("--insecure", "--resume")
        machines.finished()
    assert_like_one_process(machines)
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert [(one["by"], one["traces"]) for one in facts["forgot"]] == [(unlearner, {})]
    (stands,) = (tmp_path / "out" / "forgetting").iterdir()  # where a later request goes on
    assert not [*stands.glob("heard-*")]


def test_sigterm_ends_each_command_and_the_silo_that_joins_again_answers_a_request(
    tmp_path: Path,
) -> None:
    with Machines(tmp_path, silos=2, rounds=2) as machines:
        machines.up("--insecure")
        for silo in range(2):
            machines.join(silo, "--insecure")
        machines.run("--insecure")
        run = machines.processes["run"]
        until(lambda: bool(rounds_of(machines)) or run.poll() is not None, "the first round")
        said = machines.terminate("run")
        assert "goes on at the server, which writes out/run.json. Follow it in out" in said
        until((tmp_path / "out" / "run.json").is_file, "the run that goes on")
        assert left_below(tmp_path / "silo-1"), "the control: its processes would be seen"
        said = machines.terminate("silo-1")
        assert "What this silo holds is kept in silo-1. Join again: the same command." in said
        said = machines.terminate("up")
        assert "stopped. Its state is kept in flower. Start again: the same command" in said
        machines.up("--insecure")
        machines.join(1, "--insecure")
        machines.run("--insecure", "--user", "7", "--unlearner", "Retrain")  # of silo 1
        machines.finished()
        machines.terminate("silo-0")
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    (answer,) = facts["forgot"]
    assert (answer["event"], answer["traces"]) == ("Withdraw", {})
    assert [one["outcome"] for one in facts["requests"]] == ["ERASED"]


def test_a_key_that_is_not_registered_cannot_join(tmp_path: Path) -> None:
    with Machines(tmp_path, silos=1) as machines:
        kit = make_kit(tmp_path / "kit", 1, ["127.0.0.1"])
        stranger = make_kit(tmp_path / "other", 1, ["127.0.0.1"])
        (stranger / "silo-0" / "ca.pem").write_bytes((kit / "silo-0" / "ca.pem").read_bytes())
        machines.up("--kit", "kit/server")
        machines.join(0, "--kit", "other/silo-0")
        joined = machines.processes["silo-0"]
        until(lambda: joined.poll() is not None, "the end of a node with another key")
        assert joined.returncode != 0
        machines.processes.pop("silo-0")
        machines.join(0, "--kit", "kit/silo-0")
        machines.run("--kit", "kit/operator")
        machines.finished()


def test_masked_sums_of_three_silos_give_the_model_of_one_process(tmp_path: Path) -> None:
    with Machines(tmp_path, silos=3) as machines:
        make_kit(tmp_path / "kit", 3, ["127.0.0.1"])
        machines.up("--kit", "kit/server")
        for silo in range(3):
            machines.join(silo, "--kit", f"kit/silo-{silo}", "--secure")
        machines.run("--kit", "kit/operator", "--secure")
        machines.finished()
    assert_like_one_process(machines)


@pytest.mark.data
@pytest.mark.parametrize("method", WHOLE)
def test_every_method_learns_and_forgets_on_loopback(method: str, tmp_path: Path) -> None:
    with Machines(tmp_path, silos=2, recipe=WHOLE[method]) as machines:
        kit = make_kit(tmp_path / "kit", 2, ["127.0.0.1"])
        machines.up("--kit", f"{kit}/server")
        for silo in range(2):
            # Forgetting asks for one person alone (a role of its own, a difference).
            machines.join(silo, "--kit", f"{kit}/silo-{silo}", "--single-updates")
        machines.run("--kit", f"{kit}/operator")
        machines.finished(3 * PATIENCE)  # a stream of four blocks has about 30 exchanges
        print(machines.log("run"))
    assert_like_one_process(machines)
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert facts["silos"]["waiting"] == []
    assert all(one["traces"] == {} for one in facts.get("forgot", ()))
