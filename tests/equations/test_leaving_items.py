"""Unlearners of leaving clients on a recommender: against plain loops over a small world."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from rescind import Erase, Federation, Share, Withdraw
from rescind.core.executor import InProcess
from rescind.core.holdings import TRAIN
from rescind.forgetting.forget import forget
from rescind.methods._client_removal import FORGET, KEEP, clear_server_state
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.sharing.fedshare import FedShare
from rescind.methods.unlearning.corrected_ascent import CorrectedAscent
from rescind.methods.unlearning.ulkd_ranking import NO_LOG, WEIGHTS, TakenBack
from rescind.models.lightgcn import LightGCN
from rescind.models.mf import MF
from worlds import tiny_holdings

LEAVER = 2
SMALL = MF(dim=4, spread=0.3)
BOTH = (CorrectedAscent, TakenBack)


def learnt(method, rounds: int = 4) -> Federation:
    fed = Federation.start(tiny_holdings(9, 14), method, seed=3, executor=InProcess(fused=False))
    wide = {n: v.double() for n, v in fed.now.state.public.items()}
    private = {n: v.double() for n, v in fed.now.vault.private.items()}
    vault = replace(fed.now.vault, private=private)
    return fed.with_(state=replace(fed.now.state, public=wide), vault=vault).run(rounds)


def plain(**given) -> FedAvg:
    return FedAvg(model=SMALL, clients_per_round=None, negatives=1, private_rate=0.1, **given)


def pair_loss(fed: Federation, table, client: int, round_: int):
    """The mean BPR of one client in a round, pair by pair."""
    held = fed.now.vault.holdings
    cohort = held.cohort(torch.tensor([client]))
    plan = fed.method.client_plan(fed.now.state.public, None, cohort, fed.clock.at(round_).step(0))
    user = fed.now.vault.private["user"][client]
    total = [
        functional.softplus((user @ table[n] - user @ table[p]) / fed.method.temperature)
        for p, n in zip(plan.items["positive"], plan.items["negative"], strict=True)
    ]
    return torch.stack(total).mean()


def gradients(fed: Federation, table, leaver: int, round_: int):
    """NPO's gradient of the leaver, and the mean of the others' losses'."""
    far = pair_loss(fed, table, leaver, round_) - pair_loss(fed, table.detach(), leaver, round_)
    (up,) = torch.autograd.grad(-2 * functional.logsigmoid(far), table)
    others = [c for c in fed.world.available.nonzero().squeeze(1).tolist() if c != leaver]
    each = [torch.autograd.grad(pair_loss(fed, table, c, round_), table)[0] for c in others]
    return up, torch.stack(each).mean(0)


def test_a_corrected_step_is_npo_of_the_leaver_projected_off_the_others():
    fed = learnt(plain())
    first, round_ = fed.now.state.public["item"], fed.now.state.round + 1
    conflicts = 0
    for leaver in fed.world.available.nonzero().squeeze(1).tolist():
        for correct in (True, False):
            table = first.clone().requires_grad_()
            up, down = gradients(fed, table, leaver, round_)
            against = float((up * down).sum())
            if against < 0 and correct:
                conflicts += 1
                up = up - against / float((down * down).sum()) * down
            table.grad = up
            torch.optim.Adam([table], lr=0.001).step()
            method = CorrectedAscent(correct=correct)
            method = replace(method, forget_rounds=1, repair_rounds=0)
            after = method.unlearn(fed, Withdraw(leaver)).now.state.public["item"]
            assert_close(after, table.detach(), atol=1e-7, rtol=0)
    assert conflicts


def test_whoever_is_forgotten_is_asked_in_every_round_and_the_others_are_drawn():
    fed = learnt(plain())
    seen: list[dict[str, list[int]]] = []
    watch = (lambda m: seen.append({r: s.who.tolist() for r, s in m.sums.items()}),)
    method = CorrectedAscent(forget_rounds=6, repair_rounds=0)
    fed = fed.fork(method=replace(fed.method, clients_per_round=3))
    after = method.unlearn(replace(fed, watch=watch), Withdraw(LEAVER))
    assert [s[FORGET] for s in seen] == [[LEAVER]] * 6
    assert len({tuple(s[KEEP]) for s in seen}) > 1
    assert all(2 <= len(s[KEEP]) <= 3 for s in seen)
    gone = after.now.state.public["item"] - fed.now.state.public["item"]
    tight = replace(method, radius=0.001).unlearn(fed, Withdraw(LEAVER))
    near = tight.now.state.public["item"] - fed.now.state.public["item"]
    assert float(near.norm()) == pytest.approx(0.001)
    assert float(gone.norm()) > 0.001


def test_the_leavers_records_are_remembered_less():
    fed = learnt(plain(rate=1.0), rounds=20)
    held = fed.now.vault.holdings
    mine = held.records[(held.records.client == LEAVER) & (held.split == TRAIN)]
    method = CorrectedAscent(forget_rate=0.02, repair_rounds=0)
    state = method.unlearn(fed, Withdraw(LEAVER)).now.state
    assert float(fed.with_(state=state).query(mine, "loss").mean()) > float(
        fed.query(mine, "loss").mean()
    )


def test_what_somebody_sent_is_taken_back_to_the_last_row():
    method = TakenBack(model=SMALL, clients_per_round=5, private_rate=0.1)
    fed = learnt(method, rounds=6)
    moved = torch.zeros_like(fed.now.state.public["item"])
    now = learnt(method, rounds=0)
    for _ in range(6):
        seen: list = []
        now = now.run(1, watch=[seen.append])
        mine = now.now.vault.log.of(torch.tensor([LEAVER])).at(now.now.state.round)
        if mine is not None and len(mine):
            moved.index_add_(0, mine.index, mine.value / seen[0].sums["train"].clients)
    assert float(moved.abs().max()) > 0
    only = replace(method, forget_rounds=0, repair_rounds=0).unlearn(fed, Withdraw(LEAVER))
    assert_close(only.now.state.public["item"], fed.now.state.public["item"] - moved)


def test_the_old_model_teaches_the_scores_back():
    method = TakenBack(model=SMALL, clients_per_round=None, reduce="mean", temperature=1.0)
    fed = learnt(method, rounds=10)
    others = torch.tensor([c for c in range(9) if c != LEAVER])

    def scores(after):
        cohort = fed.now.vault.holdings.cohort(others)
        return fed.method.client_scores(after.now.state.public, fed.now.vault.read(others), cohort)

    apart = [
        float((scores(m.unlearn(fed, Withdraw(LEAVER))) - scores(fed)).square().mean())
        for m in (
            replace(method, forget_rounds=n, repair_rounds=0, forget_rate=0.01) for n in (0, 40)
        )
    ]
    assert apart[1] < 0.5 * apart[0]


def test_the_servers_rows_of_those_who_stay_stay_and_its_moments_go():
    method = FedShare(model=LightGCN(dim=4), clients_per_round=None, refine_pairs=32)
    fed = Federation.start(tiny_holdings(9, 14), method, seed=3)
    held = fed.now.vault.holdings
    fed = fed.apply(Share(held.records[held.split == TRAIN])).run(4)
    first = method.server_init(fed.world, fed.clock).own["user"]
    old = fed.now.state.own["user"]
    assert bool((old != first).any(1).sum() > 3)
    after = clear_server_state(fed, fed, LEAVER).now.state.own
    stay = torch.arange(len(old)) != LEAVER
    assert torch.equal(after["user"][stay], old[stay])
    assert torch.equal(after["user"][LEAVER], first[LEAVER])
    assert any("server/" in name for name in fed.now.state.own)
    assert not any("server/" in name for name in after)


@pytest.mark.parametrize("cls", BOTH)
def test_nothing_of_the_leaver_stays_and_single_records_are_trained_again(cls):
    learner = TakenBack(model=SMALL, clients_per_round=None) if cls is TakenBack else plain()
    fed = learnt(learner)
    unlearner = replace(learner) if cls is TakenBack else cls()
    after, evidence = forget(fed, Withdraw(LEAVER), unlearner, audits="none")
    assert set(after.now.state.public) == {"item"}
    assert set(after.now.state.own) <= {WEIGHTS, NO_LOG}
    assert not bool(after.world.members[LEAVER])
    assert evidence.receipt.done.unlearning == cls.__name__
    held = fed.now.vault.holdings
    some = held.records[held.split == TRAIN][torch.arange(2)]
    again = fed.retrained(Erase(some)).now.state.public["item"]
    erased = unlearner.unlearn(fed, Erase(some))
    assert torch.equal(erased.now.state.public["item"], again)
    # Whoever took records back has no log any more: when they leave, it is by training again.
    who = Withdraw(int(some.client[0]))
    left = unlearner.unlearn(erased, who).now.state.public["item"]
    if cls is TakenBack:
        assert torch.equal(left, erased.retrained(who).now.state.public["item"])


def test_what_was_not_kept_is_forgotten_by_training_again_and_bad_settings_are_refused():
    fed = learnt(plain())
    one = TakenBack(model=SMALL).unlearn(fed, Withdraw(LEAVER)).now.state.public["item"]
    assert torch.equal(one, fed.retrained(Withdraw(LEAVER)).now.state.public["item"])
