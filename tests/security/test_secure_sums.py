"""Secure sums against a cheating server: it searches seeds, lies, repeats and swaps keys."""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("flwr")

from flower.grids import FIRST, InMemory, silos_of
from rescind.core.clock import Clock
from rescind.core.federation import Federation
from rescind.core.labels import Labels
from rescind.core.method import Method
from rescind.core.params import load
from rescind.core.records import Withdraw
from rescind.core.run_state import RoundResult
from rescind.core.tasks import Metric
from rescind.core.tasks.metrics import Owners, Ranking
from rescind.core.update import Sum
from rescind.data.blocklist import Blocklist
from rescind.errors import ConfigError, ConsentError, DataError, RescindError
from rescind.flower.certificates import make_kit
from rescind.flower.server.executor import FlowerExecutor
from rescind.flower.server.secure_round import WRONG
from rescind.flower.silo.departures import add_to_list
from rescind.flower.silo.identity import Identity
from rescind.flower.silo.minimums import FILE, check_difference
from rescind.flower.silo.names import USER, Numbering, key_of
from rescind.flower.silo.secure_sum import Masks
from rescind.flower.silo.storage import Store, as_keys
from rescind.flower.wire.messages import Letter
from rescind.flower.wire.secure_aggregation import (
    KEYS,
    MASK,
    SECURE,
    SHARES,
    TOO_FEW,
    UNMASK,
    Masked,
    own_key,
    pair_mask,
    shared_key,
    task_of,
    threshold_of,
)
from rescind.methods.additive.gram import Gram
from rescind.methods.baselines.fedavg import FedAvg
from rescind.models.mf import MF
from rescind.privacy.shamir import join
from rescind.privacy.shares import expanded
from worlds import tiny_holdings

pytestmark = pytest.mark.flower

RANGE = 1024.0
PUBLIC = torch.tensor([[1.0, 2.0]])


def sum_of(silo: int) -> Sum:
    """Return a sum that nobody else has: small numbers, as sums of updates are. [40]"""
    values = torch.sin(torch.arange(40) * (silo + 1.5)) * 10
    return Sum({"item": values}, float(silo + 1), silo + 1)


class Server:
    """A server that can send anything to silos that mask their sums."""

    def __init__(self, folder: Path, silos: int, identities: dict[int, Identity] | None = None):
        self.silos = range(silos)
        self.stores = [Store(folder / f"silo-{n}") for n in self.silos]
        self.masks = [Masks((identities or {}).get(n)) for n in self.silos]
        self.number = 0

    def ask(self, silo: int, stage: str, public: torch.Tensor = PUBLIC, **facts: Any) -> Any:
        about = {"stage": stage, "number": self.number, **facts}
        letter = Letter({"run": "r", "round": 1, SECURE: about}, {"public|item": public})
        if stage == MASK:
            return self.masks[silo].mask(silo, letter, sum_of(silo))[1].numpy().view(np.uint64)
        return self.masks[silo].answer(self.stores[silo], silo, len(self.silos), letter)

    def begin(self, silo: int, **changes: Any) -> Any:
        members = [*self.silos]
        facts = {"members": members, "threshold": threshold_of(len(members)), "range": RANGE}
        return self.ask(silo, KEYS, **{**facts, **changes})

    def keys(self) -> dict[str, Any]:
        self.number += 1
        return {str(silo): self.begin(silo) for silo in self.silos}

    def shares(self, keys: dict[str, Any]) -> dict[int, Any]:
        return {silo: self.ask(silo, SHARES, keys=keys)["shares"] for silo in self.silos}

    def masked(self, boxes: dict[int, Any]) -> dict[int, np.ndarray]:
        return {to: self.ask(to, MASK, shares=received(boxes, to)) for to in self.silos}


def received(boxes: dict[int, Any], to: int) -> dict[str, str]:
    return {str(sender): box[str(to)] for sender, box in boxes.items() if str(to) in box}


# -- masks cannot be guessed -----------------------------------------------------------------------

WINDOW = 256
"""Seeds tried for each mask. The whole space of the old scheme is 2**32: 20 s on a GPU."""


def old_seed(key: bytes) -> int:
    """Return the seed that Flower makes of a key (secaggplus_utils.pseudo_rand_gen)."""
    return int(np.bitwise_xor.reduce(np.frombuffer(key, dtype="<u4")))


def old_mask(seed: int, size: int) -> np.ndarray:
    """Return Flower's mask of a seed: 32-bit numbers of a Mersenne Twister."""
    twister = np.random.RandomState(seed)  # noqa: TID251
    mask = twister.randint(0, 2**32 - 1, size, dtype=np.int64)
    return mask.astype(np.uint64)


def new_mask(seed: int, size: int) -> np.ndarray:
    return expanded(seed.to_bytes(32, "little"), size)


def search(
    masked: np.ndarray, seeds: tuple[int, int], mask: Callable[[int, int], np.ndarray], bits: int,
    small: int,
) -> list[np.ndarray]:  # fmt: skip
    """Try all pairs of seeds in two windows. Return the sums whose entries are all small.

    seeds: the true ones, which lie in the middle    bits: of the numbers    small: size of a sum's
    """
    windows = [range(max(0, seed - WINDOW // 2), seed + WINDOW // 2) for seed in seeds]
    first, second = (np.stack([mask(s, len(masked)) for s in window]) for window in windows)
    found, modulus = [], np.uint64(2**bits - 1)
    for (one, sign), (two, other) in itertools.product(
        ((first, 1), (first, -1)), ((second, 1), (second, -1))
    ):
        left = masked - one if sign > 0 else masked + one
        for row in left:
            rest = ((row - two if other > 0 else row + two) + np.uint64(small)) & modulus
            for hit in np.flatnonzero((rest < 2 * small).all(1)):
                found.append(rest[hit].astype(np.int64) - small)
    return found


def test_the_old_masks_are_found_by_trying_seeds() -> None:
    """The control: Flower's generator with real 256-bit keys, from what the server sees."""
    keys = [hashlib.sha256(bytes([n])).digest() for n in range(2)]
    true = np.rint(sum_of(0).totals["item"].numpy() * 2**21 / RANGE).astype(np.int64)
    seeds = (old_seed(keys[0]), old_seed(keys[1]))
    masked = true.view(np.uint64) + old_mask(seeds[0], 40) - old_mask(seeds[1], 40)
    (found,) = search(masked, seeds, old_mask, 32, 2**21)
    assert np.array_equal(found, true)


def test_the_new_masks_are_not_found_by_trying_seeds(tmp_path: Path) -> None:
    """The server knows the silo's own mask, and tries seeds around what the keys fold to."""
    server = Server(tmp_path, 3)
    boxes = server.shares(server.keys())
    rounds = [copy.deepcopy(masks.round) for masks in server.masks]
    masked = server.masked(boxes)
    victim = rounds[0]
    assert victim is not None
    letter = Letter({"run": "r", "round": 1}, {"public|item": PUBLIC})
    about = (victim.view, task_of(letter))
    rest = masked[0] - expanded(own_key(victim.seed, *about), 42)
    keys = [
        shared_key(victim.mask_secret, victim.keys[other]["mask"], "pair mask", *about)
        for other in (1, 2)
    ]
    seeds = (old_seed(keys[0]), old_seed(keys[1]))
    true = np.rint(sum_of(0).totals["item"].numpy() * 2**40 / RANGE).astype(np.int64)
    for mask in (old_mask, new_mask):
        assert search(rest[:40], seeds, mask, 64, 2**40) == []
    # The control: with the 256-bit keys themselves, the same subtraction gives the sum.
    left = [
        rest[:40] + s * expanded(keys[0], 42)[:40] + o * expanded(keys[1], 42)[:40]
        for s in (np.uint64(1), np.uint64(2**64 - 1))
        for o in (np.uint64(1), np.uint64(2**64 - 1))
    ]
    assert sum(np.array_equal(one.view(np.int64), true) for one in left) == 1


def test_masks_are_new_in_every_round_and_for_every_purpose(tmp_path: Path) -> None:
    server, seen = Server(tmp_path, 3), []
    for _ in range(2):
        seen += [*server.masked(server.shares(server.keys())).values()]
    for one, two in itertools.combinations(seen, 2):
        assert not (one == two).any()
    secret, other = bytes(range(32)), server.begin(0, **{"number": 9})["mask"]
    purposes = ("pair mask", "shares")
    keys = [shared_key(secret, other, purpose, about) for purpose in purposes for about in (1, 2)]
    assert len({*keys}) == 4


# -- the server lies about a round -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"threshold": 1}, "threshold 1 of 4 silos.*only with 3"),
        ({"members": [0, 1], "threshold": 3}, "over 2 silos"),
        ({"members": [0, 0, 0, 0]}, "must be different ones"),
        ({"members": [1, 2, 3], "threshold": 3}, "silo 0 among them"),
        ({"members": [0, 1, 2, 9]}, "must be different ones of 0 to 3"),
        ({"range": -1.0}, "range"),
        ({"members": "0123"}, "no valid 'members'"),
    ],
)
def test_a_silo_refuses_the_rules_of_a_lying_server(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    server = Server(tmp_path, 4)
    server.number = 1
    with pytest.raises(RescindError, match=why):
        server.begin(0, **changes)
    assert server.masks[0].round is None
    server.begin(0)  # the control: an honest round begins


def test_a_round_is_never_repeated_also_after_a_restart(tmp_path: Path) -> None:
    server = Server(tmp_path, 3)
    server.masked(server.shares(server.keys()))
    for _ in range(2):
        with pytest.raises(ConsentError, match="not after 1, the last"):
            server.begin(0)
        server.masks[0] = Masks()  # the silo was restarted
    server.keys()


def test_every_stage_is_answered_once_and_in_order(tmp_path: Path) -> None:
    server = Server(tmp_path, 3)
    keys = server.keys()
    boxes = server.shares(keys)
    with pytest.raises(ConsentError, match="answered once, in order"):
        server.ask(0, SHARES, keys=keys)  # other keys for the same round
    with pytest.raises(ConsentError, match="answered once, in order"):
        server.ask(0, MASK, shares=received(boxes, 0))  # and the round is over
    boxes = server.shares(server.keys())
    server.masked(boxes)
    first = server.ask(0, UNMASK, alive=[0, 1, 2])
    assert {*first["shares"]} == {"0", "1", "2"}
    with pytest.raises(ConsentError, match="answered once"):
        server.ask(0, UNMASK, alive=[0, 1, 2])
    server.number -= 1
    with pytest.raises(ConsentError, match="does not follow"):
        server.ask(1, UNMASK, alive=[0, 1, 2])  # a stage of another round


@pytest.mark.parametrize("alive", [[0, 1], [0, 1, 1, 1], [1, 2, 3], [0, 1, 2, 7], [0, 1, "2"]])
def test_masks_stay_if_the_server_lies_about_who_is_there(alive: list[Any], tmp_path: Path) -> None:
    server = Server(tmp_path, 4)
    server.masked(server.shares(server.keys()))
    with pytest.raises(ConsentError):
        server.ask(0, UNMASK, alive=alive)


def test_both_secrets_of_a_silo_cannot_be_collected(tmp_path: Path) -> None:
    """The server says to some that silo 0 is lost and to others that it is not."""
    for silos in (3, 4, 6, 7):
        server = Server(tmp_path / str(silos), silos)
        server.masked(server.shares(server.keys()))
        kinds = []
        for silo in range(1, silos):
            lost = silo % 2 == 0
            alive = [n for n in range(silos) if n or not lost]
            try:
                kinds.append((lost, server.ask(silo, UNMASK, alive=alive)["shares"]["0"]))
            except ConsentError:
                continue
        most = [sum(kind == lost for kind, _ in kinds) for lost in (True, False)]
        assert min(most) < threshold_of(silos)


def test_a_server_with_its_own_keys_is_found(tmp_path: Path) -> None:
    """It plays silos 1 and 2 to silo 0. Without identities it reads the sum: the control."""
    kit = make_kit(tmp_path / "kit", 3, ["server"])
    known = {n: Identity.of_kit(kit / f"silo-{n}") for n in range(3)}
    for identities, found in ((None, False), (known, True)):
        server = Server(tmp_path / str(found), 3, identities)
        puppets = Server(tmp_path / f"puppets-{found}", 3)
        server.number = puppets.number = 1
        keys = {"0": server.begin(0), "1": puppets.begin(1), "2": puppets.begin(2)}
        if found:
            with pytest.raises(ConsentError, match="silo 1 are not signed by silo 1"):
                server.ask(0, SHARES, keys=keys)
            continue
        boxes = {0: server.ask(0, SHARES, keys=keys)["shares"]}
        for silo in (1, 2):
            boxes[silo] = puppets.ask(silo, SHARES, keys=keys)["shares"]
        total = server.ask(0, MASK, shares=received(boxes, 0))
        for silo in (1, 2):
            puppets.ask(silo, MASK, shares=received(boxes, silo))
        rounds = [puppets.masks[silo].round for silo in (1, 2)]
        own = server.ask(0, UNMASK, alive=[0, 1, 2])["shares"]["0"]
        shares = {0: own} | {n: now.shares[0][1] for n, now in zip((1, 2), rounds, strict=True)}
        letter = Letter({"run": "r", "round": 1}, {"public|item": PUBLIC})
        about = (rounds[0].view, task_of(letter))
        seed = join({silo: int(share, 16) for silo, share in shares.items()})
        total = total - expanded(own_key(seed, *about), 42)
        for now in rounds:
            total = total + pair_mask(now.mask_secret, keys["0"]["mask"], 42, *about)
        read = torch.from_numpy(total.view(np.int64)[:40] * (RANGE / 2.0**40))
        assert_close(read, sum_of(0).totals["item"].double(), rtol=0, atol=1e-6)


def test_a_signature_is_for_one_round_and_one_silo(tmp_path: Path) -> None:
    kit = make_kit(tmp_path / "kit", 3, ["server"])
    known = {n: Identity.of_kit(kit / f"silo-{n}") for n in range(3)}
    server = Server(tmp_path, 3, known)
    old = server.keys()
    new = server.keys()
    server.shares(new)  # the control
    new = server.keys()
    with pytest.raises(ConsentError, match="not signed by silo 1"):
        server.ask(0, SHARES, keys={**new, "1": old["1"]})
    new = server.keys()
    with pytest.raises(ConsentError, match="not signed by silo 1"):
        server.ask(0, SHARES, keys={**new, "1": new["2"], "2": new["1"]})
    (kit / "silo-0" / "silos.pub").unlink()
    with pytest.raises(ConfigError, match="pretend to be them"):
        Identity.of_kit(kit / "silo-0")


def test_silos_that_see_different_keys_do_not_accept_each_others_shares(tmp_path: Path) -> None:
    server = Server(tmp_path, 4)
    keys = server.keys()
    server.ask(0, SHARES, keys={n: one for n, one in keys.items() if n != "3"})
    boxes = {silo: server.ask(silo, SHARES, keys=keys)["shares"] for silo in (1, 2, 3)}
    with pytest.raises(DataError, match="InvalidTag"):
        server.ask(0, MASK, shares={str(n): boxes[n]["0"] for n in (1, 2)})


def test_shares_that_were_changed_or_swapped_are_found(tmp_path: Path) -> None:
    for change in ("changed", "swapped"):
        server = Server(tmp_path / change, 3)
        boxes = server.shares(server.keys())
        mine = received(boxes, 0)
        if change == "changed":
            mine["1"] = f"{int(mine['1'][:2], 16) ^ 1:02x}{mine['1'][2:]}"
        else:
            mine["1"] = boxes[1]["2"]
        with pytest.raises(DataError, match="InvalidTag"):
            server.ask(0, MASK, shares=mine)


def test_masks_do_not_cancel_between_different_models(tmp_path: Path) -> None:
    """A server that sends others a model on which they compute nothing cannot single one out."""
    totals = []
    for models in ((PUBLIC, PUBLIC, PUBLIC), (PUBLIC, PUBLIC * 0, PUBLIC * 0)):
        server = Server(tmp_path / str(len(totals)), 3)
        boxes = server.shares(server.keys())
        rounds = [copy.deepcopy(masks.round) for masks in server.masks]
        total = np.zeros(42, dtype=np.uint64)
        for silo, model in enumerate(models):
            total += server.ask(silo, MASK, public=model, shares=received(boxes, silo))
            now = rounds[silo]
            assert now is not None
            letter = Letter({"run": "r", "round": 1}, {"public|item": model})
            total -= expanded(own_key(now.seed, now.view, task_of(letter)), 42)
        totals.append(np.abs(total.view(np.int64) * (RANGE / 2.0**40)))
    expected = sum(sum_of(silo).totals["item"].numpy() for silo in range(3))
    assert_close(torch.from_numpy(totals[0][:40]), torch.from_numpy(np.abs(expected)).double(),
                 rtol=1e-6, atol=1e-6)  # fmt: skip
    assert np.median(totals[1]) > 1e6


# -- people in a sum -------------------------------------------------------------------------------

CLIENTS, ITEMS, SEED, SILOS = 18, 14, 5, 3
METHOD = FedAvg(model=MF(dim=4))


def started(
    folder: Path, silos: int = SILOS, masked: bool = False, method: Method = METHOD, **node: bool
) -> tuple[Federation, FlowerExecutor, InMemory]:
    executor, grid = silos_of(tiny_holdings(CLIENTS, ITEMS), silos, folder, **node)
    executor = replace(executor, masked=Masked(8.0) if masked else None)
    return Federation.start(executor.gather(SEED), method, SEED, executor), executor, grid


def ask_for(
    fed: Federation, executor: FlowerExecutor, grid: InMemory, ids: list[int], **roles: int
) -> Letter:
    """Ask silo 0 for a sum of exactly these clients. roles: by name"""
    facts = {"roles": [[client, name] for name, client in roles.items()]}
    tensors = {"ids": torch.tensor(ids)}
    tensors |= {f"public|{n}": v for n, v in fed.now.state.public.items()}
    vault, clock = fed.now.vault, Clock(SEED).at(1)
    request = executor._vault_request("train", fed.method, vault, 0, clock, facts, tensors)
    return grid.nodes[FIRST].answer(request)


VICTIM = 6
"""A client of silo 0, which has clients 0, 3, 6, 9, 12 and 15."""


@pytest.mark.parametrize(
    ("ids", "roles", "why"),
    [
        ([VICTIM], {}, "1 of its 6 clients"),
        ([VICTIM, VICTIM], {}, "asked for twice"),
        ([0, 3, VICTIM, VICTIM, 9], {}, "asked for twice"),
        ([0, 3, VICTIM, 9], {"other": VICTIM}, "role 'other' in which 1 of its 6"),
        ([VICTIM], {"leave": VICTIM}, "role 'leave' in which 1"),
    ],
)
@pytest.mark.parametrize("method", [METHOD, Gram()], ids=["FedAvg", "Gram"])
def test_a_silo_gives_no_sum_that_shows_one_person(
    ids: list[int], roles: dict[str, int], why: str, method: Method, tmp_path: Path
) -> None:
    fed, executor, grid = started(tmp_path / "a", method=method)
    refused = ask_for(fed, executor, grid, ids, **roles)
    assert why in refused.facts["why"]
    assert refused.tensors == {}
    given = ask_for(fed, executor, grid, [0, 3, VICTIM, 9])
    assert "sums" in given.facts, "the control: enough people"
    if why.endswith("clients"):
        fed, executor, grid = started(tmp_path / "b", method=method, single_updates=True)
        assert "sums" in ask_for(fed, executor, grid, ids, **roles).facts, "the owner allows it"


def test_someone_who_left_does_not_count(tmp_path: Path) -> None:
    fed, executor, grid = started(tmp_path)
    assert "sums" in ask_for(fed, executor, grid, [0, 3, VICTIM]).facts, "the control"
    fed = fed.apply(Withdraw(0)).apply(Withdraw(3))
    refused = ask_for(fed, executor, grid, [0, 3, VICTIM])
    assert "in which 1 of its 4 clients take part" in refused.facts["why"]


@pytest.mark.parametrize("metric", [Ranking(), Owners()])
def test_one_person_is_not_measured_alone(metric: Metric, tmp_path: Path) -> None:
    """`Owners` counts the owners of each item: of one person, it is their history."""
    fed, executor, _ = started(tmp_path)
    everyone = fed.world.members.nonzero().squeeze(1)
    public, vault = fed.now.state.public, fed.now.vault
    for ids in ([VICTIM], [0, VICTIM], [VICTIM] * 3):
        with pytest.raises(ConsentError, match="asked to measure"):
            executor.measure(METHOD, public, vault, torch.tensor(ids), metric)
    for _ in range(2):
        assert executor.measure(METHOD, public, vault, everyone, metric).clients > 0
    without = executor.measure(METHOD, public, vault, everyone[everyone != VICTIM], metric)
    elsewhere = executor.measure(METHOD, public, vault, everyone[everyone % 3 != 0], metric)
    assert without.clients == elsewhere.clients, "silo 0 gave nothing: it would show one person"


def test_people_who_add_nothing_do_not_hide_others(tmp_path: Path) -> None:
    members = torch.ones(8, dtype=torch.bool)
    there = members.clone()
    there[[1, 2]] = False
    path = tmp_path / FILE
    check_difference(path, 0, torch.arange(8), there, members, eight())
    with pytest.raises(ConsentError, match="by 1;"):
        check_difference(path, 0, torch.tensor([3, 4, 5, 6, 7]), there, members, eight())
    less = torch.tensor([1, 2, 5, 6, 7])
    check_difference(path, 0, less, there, members, eight())  # control


def test_a_round_that_would_forget_without_the_one_who_leaves_stops(tmp_path: Path) -> None:
    fed, _, _ = started(tmp_path)
    with pytest.raises(DataError, match=r"needs every silo in round 1.*'forget' in which 1"):
        fed.run(1, roles={VICTIM: "forget"})


def test_two_masked_sums_never_differ_by_one_person(tmp_path: Path) -> None:
    fed, executor, grid = started(tmp_path, masked=True, secure=True)
    fed = fed.run(2)  # all clients, twice
    assert executor.line.refused == {}

    vault, public = fed.now.vault, fed.now.state.public
    ids = fed.world.available.nonzero().squeeze(1)
    for few in (ids[ids != VICTIM], ids[(ids != VICTIM) & (ids != 9)]):
        sums, _ = executor.train(METHOD, public, None, vault, few, None, Clock(SEED).at(1))
        assert sums["train"].clients == 0
    failed = [r.facts["why"] for _, r in grid.said if "why" in r.facts]
    assert any("differs from an earlier sum by 1" in why for why in failed)
    assert any("differs from an earlier sum by 2" in why for why in failed)
    many = ids[~torch.isin(ids, torch.tensor([VICTIM, 9, 12]))]
    sums, _ = executor.train(METHOD, public, None, vault, many, None, Clock(SEED).at(1))
    assert sums["train"].clients == len(many), "the control: three people less"


def test_people_may_leave_one_by_one_and_are_not_remembered(tmp_path: Path) -> None:
    fed, executor, _ = started(tmp_path, masked=True, secure=True)
    fed = fed.run(1).apply(Withdraw(VICTIM)).run(1)
    assert executor.line.refused == {}
    everyone, path = torch.ones(8, dtype=torch.bool), tmp_path / FILE
    check_difference(path, 0, torch.arange(8), everyone, everyone, eight())
    before = path.read_bytes()
    rest = everyone.clone()
    rest[3] = False
    with pytest.raises(ConsentError, match="by 1;"):
        check_difference(path, 0, rest.nonzero().squeeze(1), everyone, everyone, eight())
    assert path.read_bytes() == before
    check_difference(path, 0, rest.nonzero().squeeze(1), rest, rest, eight())  # 3 has left
    check_difference(path, 0, torch.arange(8), everyone, everyone, eight())  # and is new now
    # A run that starts with fewer clients does not make the silo forget the others.
    check_difference(path, 0, torch.arange(5), everyone[:5], everyone[:5], eight()[:5])
    with pytest.raises(ConsentError, match="by 1;"):
        check_difference(path, 0, rest.nonzero().squeeze(1), everyone, everyone, eight())


def eight() -> tuple[str, ...]:
    """Keys of people whose data has no ids: each is their number."""
    return Numbering.of(Labels(), 8, 0).users


def numbered() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Keys of eight people, and when data let somebody in: everybody else has the next number."""
    before = tuple(key_of(USER, f"user {n}") for n in range(8))
    return before, (key_of(USER, "rare"), *before)


def all_of(names: Sequence[str]) -> torch.Tensor:
    return torch.ones(len(names), dtype=torch.bool)


@pytest.mark.parametrize("by_number", [False, True], ids=["by id", "by number"])
def test_the_same_people_less_one_are_known_under_other_numbers(
    by_number: bool, tmp_path: Path
) -> None:
    path, (before, anew) = tmp_path / FILE, numbered()
    if by_number:  # the control: as earlier versions did
        before, anew = eight(), Numbering.of(Labels(), 9, 0).users
    everyone, now = all_of(before), all_of(anew)
    check_difference(path, 0, torch.tensor([0, 2, 4, 6]), everyone, everyone, before)
    same_less_one = torch.tensor([1, 3, 5])
    with nullcontext() if by_number else pytest.raises(ConsentError, match="by 1;"):
        check_difference(path, 0, same_less_one, now, now, anew)
    if not by_number:
        check_difference(path, 0, torch.tensor([2, 4, 6]), now, now, anew)  # other people


def test_who_left_is_not_remembered_whatever_their_number_was(tmp_path: Path) -> None:
    path, (before, anew) = tmp_path / FILE, numbered()
    everyone, now = all_of(before), all_of(anew)
    check_difference(path, 0, torch.arange(8), everyone, everyone, before)
    now[4] = False  # user 3, who was number 3
    check_difference(path, 0, torch.arange(9), now, now, anew)
    assert remembered(path) == {*anew} - {before[3]}
    without = anew[:-1]  # the data has the last one no more
    check_difference(path, 0, torch.arange(8), now[:8], now[:8], without)
    assert before[7] in remembered(path), "control: who is only away now is remembered"
    add_to_list(tmp_path, Blocklist().with_withdrawn(before[7]))
    check_difference(path, 0, torch.arange(8), now[:8], now[:8], without)
    assert remembered(path) == {*anew} - {before[3], before[7]}


def remembered(path: Path) -> set[str]:
    return {*as_keys(load(path)[0]["people"])}


# -- silos are lost --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("silos", "verb"),
    [(4, "all"), (4, KEYS), (4, SHARES), (4, MASK), (4, UNMASK), (6, "all"), (6, MASK)],
)
def test_a_round_goes_on_without_a_silo_that_is_lost(silos: int, verb: str, tmp_path: Path) -> None:
    """With Flower's workflow, one that was away at the start ended every round: it counted as
    lost after the keys, and the others had no share of its secrets."""
    lost = FIRST + 1
    fed, executor, grid = started(tmp_path / "a", silos, masked=True)
    plain, _, other = started(tmp_path / "b", silos)
    stages = itertools.cycle((KEYS, SHARES, MASK, UNMASK))

    def dropped(number: int, reply: Letter) -> Letter | None:
        gone = number == lost and (next(stages) == verb or verb == "all")
        return None if gone else reply

    grid.changed = dropped
    in_total = verb == UNMASK  # its sum has come
    other.changed = lambda n, reply: None if n == lost and not in_total else reply
    seen: list[RoundResult] = []
    after, expected = fed.run(1, watch=[seen.append]), plain.run(1)
    for name, value in expected.now.state.public.items():
        assert_close(after.now.state.public[name], value, rtol=1e-5, atol=1e-6)
    assert seen[0].sums["train"].clients > 0
    missing = int(fed.world.available[1::silos].sum())
    assert sum(seen[0].sums["train"].refused.values()) == (0 if in_total else missing)
    grid.changed = None
    again = after.run(1, watch=[seen.append])
    assert seen[1].sums["train"].clients == int(again.world.available.sum())
    assert executor.line.refused["no answer in time"] >= 1


def test_too_few_silos_give_no_total(tmp_path: Path) -> None:
    """The control: of 4, two are lost."""
    fed, _, grid = started(tmp_path, 4, masked=True)
    grid.away = {FIRST, FIRST + 1}
    seen: list[RoundResult] = []
    fed.run(1, watch=[seen.append])
    assert seen[0].sums["train"].clients == 0
    assert TOO_FEW in seen[0].sums["train"].refused


def test_a_silo_that_sends_wrong_shares_is_noticed(tmp_path: Path) -> None:
    fed, _, grid = started(tmp_path, 4, masked=True)

    def wrong(number: int, reply: Letter) -> Letter:
        secure = reply.facts.get(SECURE, {})
        if number == FIRST and "shares" in secure and "0" in secure["shares"]:  # the last stage
            shares = {n: f"{int(s, 16) ^ 1:x}" for n, s in secure["shares"].items()}
            return Letter({**reply.facts, SECURE: {"shares": shares}}, reply.tensors)
        return reply

    grid.changed = wrong
    seen: list[RoundResult] = []
    fed.run(1, watch=[seen.append])
    assert seen[0].sums["train"].refused.keys() == {WRONG}


NONSENSE: list[dict[str, Any]] = [
    {SECURE: {}}, {SECURE: {"mask": 1}}, {SECURE: None}, {SECURE: {"shares": {"x": "y"}}},
    {SECURE: [1]}, {SECURE: {"mask": "zz", "share": "", "seed": "", "signature": ""}},
    {"spec": "x"}, {"up": "many"}, {"refused": 1},
]  # fmt: skip


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_a_silo_that_sends_nonsense_is_left_out(nonsense: dict[str, Any], tmp_path: Path) -> None:
    fed, _, grid = started(tmp_path, 4, masked=True)

    def changed(number: int, reply: Letter) -> Letter:
        if number != FIRST or not nonsense.keys() <= reply.facts.keys():
            return reply
        return Letter({**reply.facts, **nonsense}, reply.tensors)

    grid.changed = changed
    seen: list[RoundResult] = []
    fed.run(1, watch=[seen.append])
    assert seen[0].sums["train"].clients > 0
    assert "cannot be read" in seen[0].sums["train"].refused


def test_a_silo_that_describes_another_sum_ends_the_round_only(tmp_path: Path) -> None:
    fed, _, grid = started(tmp_path, 4, masked=True)
    grid.changed = lambda n, r: (
        Letter({**r.facts, "spec": [["totals", "x", [-1], "load"]]}, r.tensors)
        if n == FIRST and "spec" in r.facts
        else r
    )
    seen: list[RoundResult] = []
    fed = fed.run(1, watch=[seen.append])
    assert seen[0].sums["train"].refused.keys() == {WRONG}
    grid.changed = None
    fed.run(1, watch=[seen.append])
    assert seen[1].sums["train"].clients > 0, "the control"
