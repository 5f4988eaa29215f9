"""Devices on silos make their own lines; a server that lies about them is found by a stranger."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from click.testing import Result
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from typer.testing import CliRunner

from flower.deployments import DATA
from flower.grids import FIRST, InMemory, silos_of
from flower.served import results
from rescind.cli import app
from rescind.core.federation import Federation
from rescind.core.records import Erase, Records, Withdraw
from rescind.errors import ConfigError, ConsentError, DataError
from rescind.flower.run_request import RunRequest
from rescind.flower.server import rosters
from rescind.flower.server.rosters import publish
from rescind.flower.server.serve import serve
from rescind.flower.silo.data_source import RecipeData
from rescind.flower.silo.identity import Identity
from rescind.flower.silo.node import Node
from rescind.flower.silo.secure_sum import Masks
from rescind.flower.silo.storage import Store
from rescind.forgetting import roster as publishing
from rescind.home import Ledger
from rescind.methods.additive.gram import Gram
from rescind.privacy import keys
from rescind.proof import roster, signed_lines
from rescind.proof.log_folder import LogFolder
from rescind.proof.roster import Public, digest, split, to_bytes
from rescind.proof.signed_lines import Signed
from rescind.proof.sum_hash import line_of
from rescind.receipts.log import key_of, open_log
from rescind.requests.words import Words
from worlds import tiny_holdings

pytestmark = pytest.mark.flower
SILOS = 2
KEYS = [ec.derive_private_key(7 + n, ec.SECP384R1()) for n in range(SILOS)]
PUBLIC = [key.public_key() for key in KEYS]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogFolder:
    monkeypatch.setenv("RESCIND_KEYS", str(tmp_path / "keys"))
    return open_log()


def started(folder: Path, silos: int = SILOS) -> tuple[Federation, InMemory]:
    """A run of Gram over silos that have keys, after a round of everybody."""
    executor, grid = silos_of(tiny_holdings(clients=9, items=14), silos, folder)
    known = dict(enumerate(PUBLIC))
    for number, node in list(grid.nodes.items()):
        masks = Masks(identity=Identity(KEYS[number - FIRST], known))
        grid.nodes[number] = replace(node, masks=masks, single_updates=True)
    fed = Federation.start(executor.gather(3), Gram(), 3, executor)
    return fed.run(1), grid


def checked(public: Public, signed: list[Signed], log: LogFolder) -> list[str]:
    """Check as a stranger does, with the keys of log and silos only."""
    told = roster.check(public, key_of(log))
    return told + signed_lines.check(public, signed, PUBLIC)


def test_honest_devices_and_server_pass_before_and_after_forgetting(
    tmp_path: Path, log: LogFolder
) -> None:
    fed, _ = started(tmp_path)
    public, signed = publish(fed, log, keys.log_key())
    assert "made by devices of 2 silos" in checked(public, signed, log)[-1]
    before = len(split(public.lines))
    assert before >= 8
    fed = fed.method.follow(fed, Withdraw(4))
    public, signed = publish(fed, log, keys.log_key())
    checked(public, signed, log)
    assert len(split(public.lines)) == before - 1


def test_no_seed_leaves_a_silo(tmp_path: Path, log: LogFolder) -> None:
    fed, grid = started(tmp_path)
    publish(fed, log, keys.log_key())
    told = [reply for _, reply in grid.said if "lines" in reply.tensors]
    assert [set(one.tensors) - {"said|available", "said|keeps", "said|member"} for one in told] == [
        {"lines", "small"}
    ] * SILOS
    assert all(one.tensors["small"].shape == (3, 1024) for one in told)  # of all devices together


def restated(public: Public, log: LogFolder, lines: list[bytes], total: bytes) -> Public:
    """What a lying server states with its own key of the log."""
    number = np.frombuffer(total, "<u8").astype(np.uint64)
    return publishing.state_sum(log, keys.log_key(), lines, number, 14, "none")


def test_a_server_that_makes_up_a_line_is_found(tmp_path: Path, log: LogFolder) -> None:
    fed, _ = started(tmp_path)
    public, signed = publish(fed, log, keys.log_key())
    checked(public, signed, log)  # the control
    ghost = to_bytes(line_of(np.array([1, 5]), 2896, 0, b"s" * 32))
    lines = [*split(public.lines), ghost]
    lie = restated(public, log, lines, roster.added_up(b"".join(lines)))
    roster.check(lie, key_of(log))  # the lines add up: signatures must tell
    with pytest.raises(DataError, match="did not sign"):  # not for this roster
        signed_lines.check(lie, signed, PUBLIC)
    number = roster.Stated.parse(lie.stated).number
    again = [_resigned(part, log, number, KEYS[part.silo]) for part in signed]
    with pytest.raises(DataError, match="1 lines were made by no device"):
        signed_lines.check(lie, again, PUBLIC)  # even if silos signed the honest lines again
    own = ec.derive_private_key(99, ec.SECP384R1())
    mine = Signed(0, (*signed[0].lines, digest(ghost)), signed[0].time, "")
    with pytest.raises(DataError, match="silo 0 did not sign"):
        signed_lines.check(lie, [_resigned(mine, log, number, own), again[1]], PUBLIC)


def _resigned(part: Signed, log: LogFolder, number: int, key: ec.EllipticCurvePrivateKey) -> Signed:
    text = signed_lines.text_of(log.checkpoint.origin, number, part.time, part.lines)
    return replace(part, signature=Identity(key, {}).sign(text))


def test_a_server_that_keeps_a_leaver_or_leaves_a_device_out_is_found(
    tmp_path: Path, log: LogFolder
) -> None:
    fed, _ = started(tmp_path)
    _, old = publish(fed, log, keys.log_key())
    gone = fed.method.follow(fed, Withdraw(4))
    kept = replace(gone, now=replace(gone.now, state=fed.now.state))  # the sum from before
    public, signed = publish(kept, log, keys.log_key())
    with pytest.raises(DataError, match="do not add up"):
        checked(public, signed, log)
    with pytest.raises(DataError, match="did not sign"):
        signed_lines.check(public, old, PUBLIC)  # lines from before the leaver
    public, signed = publish(gone, log, keys.log_key())
    lines = split(public.lines)[1:]
    short = replace(public, lines=b"".join(lines))
    with pytest.raises(DataError, match="missing"):
        roster.check(short, key_of(log))
    with pytest.raises(DataError, match="1 lines of devices are missing"):
        signed_lines.check(short, signed, PUBLIC)
    checked(public, signed, log)  # the control


def test_a_server_that_leaves_a_whole_silo_out_is_found(tmp_path: Path, log: LogFolder) -> None:
    fed, _ = started(tmp_path)
    public, signed = publish(fed, log, keys.log_key())
    checked(public, signed, log)  # the control
    first = {digest(one): one for one in split(public.lines) if digest(one) in signed[0].lines}
    lines = [first[name] for name in sorted(first)]
    lie = restated(public, log, lines, roster.added_up(b"".join(lines)))
    number = roster.Stated.parse(lie.stated).number
    alone = [_resigned(signed[0], log, number, KEYS[0])]
    roster.check(lie, key_of(log))
    with pytest.raises(DataError, match="silo 1 signed no lines"):
        signed_lines.check(lie, alone, PUBLIC)
    signed_lines.check(lie, alone, PUBLIC[:1])  # whoever knows of one silo cannot tell


def test_lines_from_before_a_leaver_show_their_time(tmp_path: Path, log: LogFolder) -> None:
    """A server that holds lines back and publishes them after the leaver left."""
    fed, _ = started(tmp_path)
    public, signed = publish(fed, log, keys.log_key())
    signed_lines.check(public, signed, PUBLIC, after=signed[0].time)  # the control
    with pytest.raises(DataError, match="before 2999-01-01T00:00:00Z: the lines may hold"):
        signed_lines.check(public, signed, PUBLIC, after="2999-01-01T00:00:00Z")
    later = [replace(part, time="2999-06-01T00:00:00Z") for part in signed]
    with pytest.raises(DataError, match="silo 0 did not sign"):  # the time is signed
        signed_lines.check(public, later, PUBLIC, after="2999-01-01T00:00:00Z")


def test_a_silo_that_was_away_delays_the_roster_and_other_logs_count_for_themselves(
    tmp_path: Path, log: LogFolder
) -> None:
    fed, grid = started(tmp_path)
    grid.away = {FIRST + 1}
    with pytest.raises(DataError, match="silo 1 sent no lines"):
        publish(fed, log, keys.log_key())
    assert not log.entries, "nothing is stated before all have answered"
    grid.away = set()
    checked(*publish(fed, log, keys.log_key()), log)  # silo 0 signs for roster 1 again
    checked(*publish(fed, log, keys.log_key()), log)
    other = open_log(tmp_path / "other", "example.org/other")
    checked(*publish(fed, other, keys.log_key()), other)  # which begins with roster 1


def test_a_silo_signs_for_no_earlier_roster_and_only_with_its_key(
    tmp_path: Path, log: LogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, grid = started(tmp_path)
    for _ in range(2):
        publish(fed, log, keys.log_key())
    with monkeypatch.context() as patched:
        patched.setattr(rosters, "next_number", lambda _: 1)
        with pytest.raises(ConsentError, match="signed lines for roster 2 already, not for 1"):
            publish(fed, log, keys.log_key())
    for number, node in list(grid.nodes.items()):
        grid.nodes[number] = replace(node, masks=Masks())
    with pytest.raises(ConsentError, match="signs no lines"):
        publish(fed, log, keys.log_key())


def test_loans_and_runs_without_silos_are_refused(tmp_path: Path, log: LogFolder) -> None:
    fed, _ = started(tmp_path)
    lent = fed.apply(fed.executor.lend(fed, (1, 0, 0), 1.0))
    with pytest.raises(ConfigError, match="lent to the server"):
        publish(lent, log, keys.log_key())
    here = Federation.start(tiny_holdings(clients=9, items=14), Gram(), 3).run(1)
    with pytest.raises(ConfigError, match="no silos"):
        publish(here, log, keys.log_key())


def test_the_command_line_checks_who_made_the_lines(tmp_path: Path, log: LogFolder) -> None:
    fed, _ = started(tmp_path)
    public, signed = publish(fed, log, keys.log_key())
    folder, known = tmp_path / "public", tmp_path / "silos.pub"
    public.write(folder)
    (folder / signed_lines.FILE).write_bytes(signed_lines.written(signed))
    lines = [key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) for key in PUBLIC]
    known.write_bytes(b"\n".join(lines) + b"\n")
    asked = ["roster", "check", str(folder), "--silos", str(known)]
    good = CliRunner().invoke(app, asked)
    assert (good.exit_code, "made by devices of 2 silos" in good.output) == (0, True), good.output
    known.write_bytes(b"\n".join(reversed(lines)) + b"\n")
    bad = CliRunner().invoke(app, asked)
    assert (bad.exit_code, "did not sign" in bad.output) == (1, True), bad.output


def test_erasing_a_record_changes_the_line_of_one_device(tmp_path: Path, log: LogFolder) -> None:
    fed, _ = started(tmp_path)
    held = tiny_holdings(clients=9, items=14).records
    one = Records(held.client[:1], held.item[:1], torch.zeros(1, dtype=torch.int64))
    after = fed.method.follow(fed, Erase(one))
    checked(*publish(after, log, keys.log_key()), log)


RECIPE = (
    DATA
    + """
[method]
name = "Gram"

[run]
rounds = 1
evaluate_every = 1
"""
)


def asked_of(folder: Path, recipe: str = RECIPE, **fields: Any) -> RunRequest:
    (folder / "recipe.toml").write_text(recipe)
    given = {"deadline": 0.0, "wait": 0.0, "roster": str(folder / "public"), **fields}
    return RunRequest(str(folder / "recipe.toml"), SILOS, str(folder / "out"), **given)


def silos(asked: RunRequest, folder: Path) -> InMemory:
    source, known = RecipeData(asked.recipe), dict(enumerate(PUBLIC))
    nodes = {
        FIRST + n: Node(
            Store(folder / f"silo-{n}"),
            source,
            n,
            SILOS,
            single_updates=True,
            masks=Masks(identity=Identity(KEYS[n], known)),
        )
        for n in range(SILOS)
    }
    return InMemory(nodes)


def test_a_run_publishes_its_roster_after_training_and_after_forgetting(
    tmp_path: Path, log: LogFolder
) -> None:
    asked = asked_of(tmp_path)
    grid, folder = silos(asked, tmp_path), tmp_path / "public"

    def as_a_stranger(place: Path, *more: str) -> Result:
        lines = [key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) for key in PUBLIC]
        (tmp_path / "silos.pub").write_bytes(b"\n".join(lines) + b"\n")
        return CliRunner().invoke(
            app, ["roster", "check", str(place), "--silos", str(tmp_path / "silos.pub"), *more]
        )

    lost = lambda node, reply: None if node > FIRST and "lines" in reply.tensors else reply  # noqa: E731
    grid.changed = lost
    serve(grid, asked)
    facts, _ = results(asked)
    assert "silo 1 sent no lines" in facts["roster"]["why"]
    assert not folder.exists()
    grid.changed = None
    serve(grid, replace(asked, resume=True))
    facts, _ = results(asked)
    assert facts["roster"]["number"] == 1
    before = int(facts["roster"]["lines"])
    assert "made by devices of 2 silos" in as_a_stranger(folder).output
    shutil.copytree(folder, tmp_path / "held back")
    time.sleep(1.1)  # receipts and lines have times to the second
    serve(grid, replace(asked, requests=(Words("leave", {"7": None}),)))
    facts, _ = results(asked)
    assert (facts["roster"]["number"], facts["roster"]["lines"]) == (2, before - 1)
    with Ledger.open() as ledger:
        (tmp_path / "receipt.json").write_bytes(ledger.receipt(facts["requests"][0]["receipt"])[0])
    receipt = ["--after", str(tmp_path / "receipt.json")]
    told = as_a_stranger(folder, *receipt)
    assert told.exit_code == 0, told.output
    told = as_a_stranger(tmp_path / "held back", *receipt)  # control: the leaver is in it
    assert (told.exit_code, "made their lines on" in told.output) == (1, True), told.output
    with pytest.raises(ConfigError, match="give --silos"):
        CliRunner().invoke(app, ["roster", "check", str(folder), *receipt], catch_exceptions=False)


@pytest.mark.parametrize(
    ("recipe", "masked", "why"),
    [
        (RECIPE.replace("Gram", "FedAvg"), None, "needs the sum of Gram; this cell has FedAvg"),
        (f"{RECIPE}\n[sharing]\nratio = [1, 1, 1]\n", None, "lent to the server"),
        (RECIPE, 64.0, "does not go with --secure"),
    ],
)
def test_a_roster_that_cannot_be_is_refused_before_training(
    recipe: str, masked: float | None, why: str, tmp_path: Path, log: LogFolder
) -> None:
    asked = asked_of(tmp_path, recipe, masked=masked)
    grid = silos(asked, tmp_path)
    with pytest.raises(ConfigError, match=why):
        serve(grid, asked)
    assert not grid.said


def test_a_silo_joins_with_lines_only_if_it_can_sign_them(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    words = ["flower", "join", str(tmp_path / "recipe.toml"), "--silo", "0/2", "--lines"]
    for more in (["--insecure"], ["--kit", str(tmp_path), "--secure"]):
        with pytest.raises(ConfigError, match="--lines needs this silo's --kit"):
            CliRunner().invoke(app, [*words, *more], catch_exceptions=False)
