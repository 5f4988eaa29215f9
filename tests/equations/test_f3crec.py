"""F3CRec by hand, and two blocks of it against plain loops over clients and items."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from rescind import Federation, InProcess, OneByOne
from rescind.core.holdings import Holdings
from rescind.core.loss_terms import preference_shift, replay_size
from rescind.core.method import Method
from rescind.core.records import Arrive, Records
from rescind.core.update import Rows
from rescind.methods.continual.f3crec import F3CRec, temporal_mean
from rescind.methods.continual.finetune import FineTune
from rescind.methods.continual.kd import KD
from rescind.models.mf import MF
from rescind.models.ncf import NCF
from rescind.models.pfedrec import PFedRec

METHOD = F3CRec(
    model=MF(dim=4, spread=0.4), negatives=2, batch_size=6, rate=0.2, private_rate=0.5,
    top_n=5, shift_scale=0.05, distil=0.7,
)  # fmt: skip
FIRST, SECOND = (5, 2, 6, 3), {0: 4, 1: 9, 4: 3, 5: 6}  # records of each client in the two blocks
TIGHT = {"atol": 1e-10, "rtol": 0.0}


# -- equations by hand ---------------------------------------------------------------------------


def test_preference_shift_eq_2() -> None:
    # Ranked: 3 (.9), 0 (.5), 2 (.4), 1 (.1). The list 0, 3, 1 now has ranks 1, 0, 3:
    # |1 - 0| + |0 - 1| + |3 - 2| = 3. Unmoved 3, 0, 2 has 0; the short list 1 has 3.
    scores = torch.tensor([[0.5, 0.1, 0.4, 0.9]]).repeat(3, 1)
    top = torch.tensor([[0, 3, 1], [3, 0, 2], [1, -1, -1]])
    assert preference_shift(scores, top).tolist() == [3, 0, 3]


def test_replay_size_eq_3_and_4() -> None:
    # 30 exp(-.006 * 0) = 30; 30 exp(-.6) = 16.46; 30 exp(-3.402) = 1.0003; 30 exp(-3.408) = .994
    shift = torch.tensor([0, 100, 566, 567, 568])
    assert replay_size(shift, 30, 0.006).tolist() == [30, 16, 1, 0, 0]


def test_temporal_mean_eq_8_to_13() -> None:
    # old [0, 0], new [3, 4], d = 2: shift = 25 / sqrt(2) = 17.6777, gamma = .9 / 18.6777 = .048186
    #   (1 - .048186) [3, 4] = [2.855442, 3.807257]. An item that did not move stays; a new one too.
    old = torch.tensor([[0.0, 0.0], [1.0, 2.0]])
    new = torch.tensor([[3.0, 4.0], [1.0, 2.0], [7.0, 7.0]])
    expected = torch.tensor([[2.855442, 3.807257], [1.0, 2.0], [7.0, 7.0]])
    assert_close(temporal_mean(old, new, 0.9), expected, atol=1e-5, rtol=0)
    alike = torch.tensor([[0.3, 0.4], [1.0, 2.0], [7.0, 7.0]])
    assert_close(temporal_mean(old, new, 0.9, per_item=False), alike, atol=1e-6, rtol=0)
    assert torch.equal(temporal_mean(old, new, 0.0), new)


# -- two blocks against plain loops --------------------------------------------------------------


def double(fed: Federation) -> Federation:
    state, vault = fed.now.state, fed.now.vault
    state = replace(state, public={n: v.double() for n, v in state.public.items()})
    private = {n: v.double() if v.is_floating_point() else v for n, v in vault.private.items()}
    return replace(fed, now=replace(fed.now, state=state, vault=replace(vault, private=private)))


def pairs(counts: dict[int, int], items: int, step: int) -> Records:
    client = [c for c, many in counts.items() for _ in range(many)]
    item = [(step * c + 5 * j) % items for c, many in counts.items() for j in range(many)]
    return Records.of(client, item)


def second_block(method: Method, executor: InProcess) -> Federation:
    """Two rounds on 4 clients and 12 items; then clients 0 and 1 come back, 4 and 5 are new."""
    records = pairs(dict(enumerate(FIRST)), 12, 3)
    held = Holdings.of(records, torch.zeros(len(records), dtype=torch.int8), 4, 12)
    fed = double(Federation.start(held, method, seed=1, executor=executor)).run(2)
    records = pairs(SECOND, 16, 7)
    split = torch.zeros(len(records), dtype=torch.int8)
    return fed.apply(Arrive(records, split, clients=6, items=16))


def logits(model: object, table: Tensor, mine: dict[str, Tensor]) -> Tensor:
    """All logits of one client, each backbone written out once more."""
    if isinstance(model, MF):
        return table @ mine["user"]
    if isinstance(model, PFedRec):
        return table @ mine["weight"] + mine["bias"]
    both = torch.cat([mine["user"].expand(len(table), -1), table], 1)
    for n in range(len(model.layers) + 1):
        both = torch.relu(both) if n else both
        both = both @ mine[f"weight{n}"].T + mine[f"bias{n}"]
    return both.squeeze(1)


def trained_alone(fed: Federation, client: int) -> tuple[Tensor, dict[str, Tensor], list[int]]:
    """One client with the whole table, in plain loops: (table, private, replayed per batch)."""
    m, public, vault = fed.method, fed.now.state.public, fed.now.vault
    ids = torch.tensor([client])
    cohort, clock = InProcess().cohort(m, vault, ids), fed.clock.at(fed.now.state.round + 1)
    plan = m.client_plan(public, vault.read(ids), cohort, clock.step(0))
    table = public["item"].clone().requires_grad_()
    mine = {n: v[client].clone() for n, v in vault.private.items()}
    top, teacher = mine.pop("top").tolist(), mine.pop("teacher")
    leaves = {"item": table, **{n: v.requires_grad_() for n, v in mine.items()}}
    played = []
    items = plan.items["item"].split(plan.sizes)
    labels = plan.values["label"].double().split(plan.sizes)
    for number, (item, label) in enumerate(zip(items, labels, strict=True)):
        for step in m.client_steps(public):
            score = logits(m.model, table, mine)
            loss = functional.binary_cross_entropy_with_logits(score[item], label)
            if top[0] >= 0:
                said = score.tolist()
                ranked = sorted(range(len(said)), key=lambda i: -said[i])
                shift = sum(abs(ranked.index(i) - k) for k, i in enumerate(top))
                many = math.floor(m.top_n * math.exp(-m.shift_scale * shift))
                many = many if m.adaptive else m.top_n
                draw = clock.step(0).batch(number)
                bits = [int(draw.bits("replay", ids, k)) for k in range(m.top_n)]
                chosen = sorted(range(m.top_n), key=bits.__getitem__)[:many]
                played.append(many)
                kept = []
                for k in chosen:
                    p, q = torch.sigmoid(score[top[k]]), torch.sigmoid(teacher[k])
                    kept.append(-(q * p.log() + (1 - q) * (1 - p).log()))
                if kept:
                    loss = loss + m.distil * torch.stack(kept).mean()
            moved = [leaves[name] for name in step.rates]
            for leaf, grad in zip(moved, torch.autograd.grad(loss, moved), strict=True):
                rate = next(r for n, r in step.rates.items() if leaves[n] is leaf)
                leaf.data -= rate * grad
    return table.detach(), {n: v.detach() for n, v in mine.items()}, played


BACKBONES = {
    "FedMF": METHOD,
    "fixed replay": replace(METHOD, adaptive=False),
    "far lists": replace(METHOD, shift_scale=0.3, batch_size=None),
    "FedNCF": replace(METHOD, model=NCF(dim=4, faster=2.0), rate=0.02),
    "FedNCF deep": replace(METHOD, model=NCF(dim=4, layers=(5,), faster=2.0), rate=0.02),
    "PFedRec": replace(METHOD, model=PFedRec(dim=4, faster=2.0), rate=0.02),
}


@pytest.mark.parametrize("executor", [InProcess(), InProcess(chunk=2), OneByOne()])
@pytest.mark.parametrize("name", BACKBONES)
def test_replay_and_temporal_mean_equal_plain_loops(name: str, executor: InProcess) -> None:
    fed = second_block(BACKBONES[name], executor)
    old = fed.now.state.memory.named("block")[0].values["item"]
    assert old.shape == (12, 4)
    assert fed.now.state.public["item"].shape == (16, 4)
    for _ in range(2):
        alone = {client: trained_alone(fed, client) for client in SECOND}
        mean = torch.stack([table for table, _, _ in alone.values()]).mean(0)
        for i in range(12):
            shift = float(((old[i] - mean[i]) ** 2).sum()) / 2.0  # sqrt(d) = 2
            share = 0.9 / (1 + shift)
            mean[i] = (1 - share) * mean[i] + share * old[i]
        fed = fed.run(1)
        assert_close(fed.now.state.public["item"], mean, **TIGHT)
        for client, (_, mine, _) in alone.items():
            for part, value in mine.items():
                assert_close(fed.now.vault.private[part][client], value, **TIGHT)
    played = [n for _, _, many in alone.values() for n in many]
    assert played
    if name == "far lists":
        assert min(played) == 0  # put aside before the round, as the loop finds inside it
    else:
        assert max(played) > 0  # something was replayed,
    if name == "FedMF":
        assert min(played) < METHOD.top_n  # and not always everything


def test_a_list_is_made_when_a_block_ends_and_only_by_those_who_were_there() -> None:
    fed = second_block(METHOD, InProcess())
    top, user = fed.now.vault.private["top"], fed.now.vault.private["user"]
    scores = user @ fed.now.state.memory.named("block")[0].values["item"].T
    for client in range(4):
        best = sorted(range(12), key=lambda i: -float(scores[client, i]))[:5]
        assert top[client].tolist() == best
        assert_close(fed.now.vault.private["teacher"][client], scores[client, best], **TIGHT)
    assert bool((top[4:] == -1).all())


def updates(fed: Federation) -> dict[int, dict[int, Tensor]]:
    """What each client would send: client -> item -> row."""
    ids, vault = torch.tensor(list(SECOND)), fed.now.vault
    cohort = InProcess().cohort(fed.method, vault, ids)
    clock = fed.clock.at(fed.now.state.round + 1)
    update, _ = fed.method.client_train(fed.now.state.public, vault.read(ids), cohort, clock)
    rows = update.entries["item"]
    assert isinstance(rows, Rows)
    sent: dict[int, dict[int, Tensor]] = {client: {} for client in SECOND}
    for owner, item, value in zip(rows.owner, rows.index, rows.value, strict=True):
        if bool((value != 0).any()):
            sent[int(ids[owner])][int(item)] = value
    return sent


def test_newcomers_train_as_if_nothing_was_ever_distilled() -> None:
    fed = second_block(METHOD, InProcess())
    with_, without = updates(fed), updates(fed.fork(method=replace(METHOD, distil=0.0)))
    for client in (4, 5):
        assert with_[client].keys() == without[client].keys()
        assert all(torch.equal(with_[client][i], without[client][i]) for i in with_[client])
    assert with_[0].keys() > without[0].keys()  # replayed items that no sample touches


def test_a_list_stays_with_someone_who_skips_a_block() -> None:
    fed = second_block(METHOD, InProcess()).run(1)
    before = fed.now.vault.private["top"].clone()
    records = pairs({0: 2, 2: 3}, 16, 5)
    third = Arrive(records, torch.zeros(len(records), dtype=torch.int8), clients=6, items=16)
    after = fed.apply(third)
    assert torch.equal(after.now.vault.private["top"][2:4], before[2:4])  # away in the second block
    assert bool((after.now.vault.private["top"][4:] >= 0).all())  # new then, known now
    (kept,) = after.now.state.memory.named("block")
    assert torch.equal(kept.values["item"], fed.now.state.public["item"])


# -- what it is made of --------------------------------------------------------------------------


def tables(method: Method) -> list[Tensor]:
    """The item table after each of two rounds of the second block."""
    fed = second_block(method, InProcess())
    return [(fed := fed.run(1)).now.state.public["item"] for _ in range(2)]


def test_without_both_sides_it_is_fine_tuning_and_the_first_block_always_is() -> None:
    shared = {n: getattr(METHOD, n) for n in ("model", "negatives", "batch_size", "rate")}
    plain = FineTune(**shared, private_rate=0.5)
    for one, two in zip(tables(replace(METHOD, distil=0, inertia=0)), tables(plain), strict=True):
        assert_close(one, two, **TIGHT)
    assert not torch.equal(tables(METHOD)[1], tables(plain)[1])
    assert torch.equal(
        second_block(METHOD, InProcess()).now.state.public["item"],
        second_block(plain, InProcess()).now.state.public["item"],
    )


def test_without_the_server_and_adaptation_it_is_kd() -> None:
    shared = {n: getattr(METHOD, n) for n in ("model", "negatives", "batch_size", "rate")}
    kd = KD(**shared, private_rate=0.5, top_n=5, distil=0.7)
    ours = replace(METHOD, inertia=0, adaptive=False)
    for one, two in zip(tables(ours), tables(kd), strict=True):
        assert_close(one, two, **TIGHT)


def test_as_published_is_a_preset_that_knows_the_backbone() -> None:
    assert F3CRec.as_published() == F3CRec(carry="last")
    assert F3CRec.as_published(model=PFedRec()).reset_private
    assert F3CRec.as_published(distil=0.0).distil == 0
