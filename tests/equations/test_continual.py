"""The baselines of F3CRec: what each adds to fine-tuning, and when it adds nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from rescind import Federation, InProcess, OneByOne
from rescind.core.clock import Clock
from rescind.core.holdings import Holdings
from rescind.core.method import Method
from rescind.core.params import Params
from rescind.core.plan import Batch, Work
from rescind.core.records import Records
from rescind.core.state import Private
from rescind.methods.continual.f3crec import F3CRec
from rescind.methods.continual.finetune import FineTune
from rescind.methods.continual.kd import KD
from rescind.methods.continual.reg import Reg
from rescind.methods.continual.reloop2 import ReLoop2, remembered
from rescind.methods.continual.spp import SPP, duplicates, follow
from rescind.models.mf import MF
from worlds import next_block, tiny_holdings

COMMON = {"model": MF(dim=4, spread=0.4), "negatives": 2, "batch_size": 6, "rate": 0.05}
LEARNERS = {
    "FT": FineTune(**COMMON, private_rate=0.3),
    "Reg": Reg(**COMMON, private_rate=0.3, strength=0.01),
    "KD": KD(**COMMON, private_rate=0.3, top_n=4, distil=0.5),
    "RLP2": ReLoop2(**COMMON, private_rate=0.3, capacity=6, nearest=3),
    "SPP": SPP(**COMMON, private_rate=0.3, reach=5, draws=2, gap_scale=0.1),
    "F3CRec": F3CRec(**COMMON, private_rate=0.3, top_n=4, shift_scale=0.05),
}
TIGHT = {"atol": 1e-10, "rtol": 0.0}


def wide(fed: Federation) -> Federation:
    """The same in float64."""

    def double(values: Params) -> dict[str, Tensor]:
        return {n: v.double() if v.is_floating_point() else v for n, v in values.items()}

    state, vault = fed.now.state, fed.now.vault
    state = replace(state, public=double(state.public))
    return fed.with_(state=state, vault=replace(vault, private=double(vault.private)))


def begun(method: Method, executor: InProcess | None = None) -> Federation:
    return wide(Federation.start(tiny_holdings(7, 12), method, 3, executor))


def blocks(method: Method, executor: InProcess | None = None, many: int = 2) -> Federation:
    """Two rounds of each of several blocks that grow, in float64, and the beginning of another."""
    fed = begun(method, executor)
    for n in range(many - 1):
        fed = fed.run(2).apply(next_block(clients=8 + n, items=14 + n, seed=5 + n))
    return fed


def everything(fed: Federation) -> dict[str, Tensor]:
    return {**fed.now.state.public, **fed.now.vault.private}


def same_model(one: Federation, two: Federation) -> None:
    assert_close(one.now.state.public["item"], two.now.state.public["item"], **TIGHT)
    assert_close(one.now.vault.private["user"], two.now.vault.private["user"], **TIGHT)


# -- every continual learner ---------------------------------------------------------------------


@pytest.mark.parametrize("name", LEARNERS)
def test_three_blocks_are_the_same_together_in_chunks_and_one_by_one(name: str) -> None:
    feds = [
        blocks(LEARNERS[name], executor, many=3).run(2)
        for executor in (InProcess(), InProcess(chunk=3, score_cells=30), OneByOne())
    ]
    for other in feds[1:]:
        for key, value in everything(feds[0]).items():
            assert_close(everything(other)[key], value, atol=1e-8, rtol=0, msg=key)
        assert other.evaluate(k=5) == pytest.approx(feds[0].evaluate(k=5))


@pytest.mark.parametrize("name", LEARNERS)
def test_the_first_block_is_fine_tuning_for_all(name: str) -> None:
    same_model(begun(LEARNERS[name]).run(2), begun(LEARNERS["FT"]).run(2))


@pytest.mark.parametrize("name", ["Reg", "KD", "SPP", "F3CRec"])
def test_the_second_block_is_not(name: str) -> None:
    ours, plain = blocks(LEARNERS[name]).run(2), blocks(LEARNERS["FT"]).run(2)
    gap = ours.now.state.public["item"] - plain.now.state.public["item"]
    assert float(gap.abs().max()) > 1e-4


# -- Reg -----------------------------------------------------------------------------------------


def reg_loss(fed: Federation, client: int, strength: float) -> tuple[Tensor, Tensor]:
    """The gradient of one client's first batch for (its shelf rows, its vector), by hand."""
    m, public, vault, ids = fed.method, fed.now.state.public, fed.now.vault, torch.tensor([client])
    cohort, clock = InProcess().cohort(m, vault, ids), fed.clock.at(fed.now.state.round + 1)
    plan = m.client_plan(public, vault.read(ids), cohort, clock.step(0))
    item, label = plan.items["item"][: plan.sizes[0]], plan.values["label"][: plan.sizes[0]]
    table = public["item"].clone().requires_grad_()
    user = vault.private["user"][client].clone().requires_grad_()
    loss = functional.binary_cross_entropy_with_logits(table[item] @ user, label.double())
    old = public["reference/item"]
    touched = sorted({*plan.items["item"].tolist(), *cohort.train.item.tolist()})
    for i in touched:
        if i < len(old):
            loss = loss + strength * ((table[i] - old[i]) ** 2).sum()
    if bool(vault.private["known"][client]):
        loss = loss + strength * ((user - vault.private["past/user"][client]) ** 2).sum()
    table_grad, user_grad = torch.autograd.grad(loss, [table, user])
    return table_grad[touched], user_grad


def first_gradient(fed: Federation, client: int) -> tuple[Tensor, Tensor]:
    """The same through the product's verbs."""
    m, public, vault, ids = fed.method, fed.now.state.public, fed.now.vault, torch.tensor([client])
    private = vault.read(ids)
    cohort, clock = InProcess().cohort(m, vault, ids), fed.clock.at(fed.now.state.round + 1)
    plan = m.client_plan(public, private, cohort, clock.step(0))
    work = Work.begin([plan], ["item", "user"], ("item",), public, private.values, cohort)
    batch = next(iter(work.batches(plan)))
    loss = m.client_loss(work, batch, public, private, cohort, clock.step(0).batch(0))
    rows, user = torch.autograd.grad(loss.sum(), [work.rows["item"], work.own["user"]])
    return rows, user[0]


def test_reg_pulls_known_people_and_old_rows_to_where_they_were() -> None:
    fed = blocks(LEARNERS["Reg"]).run(1)
    strengths = []
    for client in (0, 1, 7):  # 7 is new in the second block
        expected, found = reg_loss(fed, client, 0.01), first_gradient(fed, client)
        assert_close(found[0], expected[0], **TIGHT)
        assert_close(found[1], expected[1], **TIGHT)
        strengths.append(bool(fed.now.vault.private["known"][client]))
    assert strengths == [True, True, False]


def test_the_stronger_reg_is_the_nearer_the_old_table_stays_while_new_rows_are_free() -> None:
    gaps = []
    for strength in (0.0, 0.1, 0.7):  # 2 * strength * rate * |I| stays below 1: it converges
        method = replace(LEARNERS["Reg"], strength=strength, batch_size=None)
        fed = blocks(method).run(6)
        old, new = fed.now.state.public["reference/item"], fed.now.state.public["item"]
        gaps.append(float((new[: len(old)] - old).square().sum()))
        first = blocks(method).now.state.public["item"][len(old) :]
        assert float((new[len(old) :] - first).abs().max()) > 1e-3
    assert gaps[0] > 1.5 * gaps[1] > 1.5 * 1.5 * gaps[2]


def test_without_strength_reg_is_fine_tuning() -> None:
    same_model(blocks(replace(LEARNERS["Reg"], strength=0.0)).run(2), blocks(LEARNERS["FT"]).run(2))


# -- KD ------------------------------------------------------------------------------------------


def test_without_a_list_kd_is_fine_tuning() -> None:
    same_model(blocks(replace(LEARNERS["KD"], top_n=0)).run(2), blocks(LEARNERS["FT"]).run(2))


def test_at_the_teachers_own_parameters_kd_pulls_nowhere() -> None:
    fed = blocks(LEARNERS["KD"])  # the block has just begun: the student is the teacher
    plain = fed.fork(method=LEARNERS["FT"])
    for client in (0, 1):
        for ours, theirs in zip(first_gradient(fed, client), first_gradient(plain, client),
                                strict=False):  # fmt: skip
            there = ours.abs().sum(-1) > 1e-12  # rows that only the list put on the shelf have 0
            assert_close(ours[there] if ours.dim() > 1 else ours,
                         theirs[theirs.abs().sum(-1) > 1e-12] if ours.dim() > 1 else theirs,
                         **TIGHT)  # fmt: skip
    moved = fed.run(1)
    ours, theirs = (first_gradient(f, 0)[1] for f in (moved, moved.fork(method=LEARNERS["FT"])))
    assert float((ours - theirs).abs().max()) > 1e-4


# -- RLP2 ----------------------------------------------------------------------------------------


def test_rlp2_trains_as_fine_tuning_and_without_trust_ranks_as_it() -> None:
    ours, plain = blocks(LEARNERS["RLP2"]).run(2), blocks(LEARNERS["FT"]).run(2)
    same_model(ours, plain)
    quiet = ours.fork(method=replace(LEARNERS["RLP2"], trust=0.0))
    assert quiet.evaluate(k=5) == pytest.approx(plain.evaluate(k=5))


def corrected(table: Tensor, item: list[int], error: list[float], **fields: float) -> Tensor:
    """Scores of one client whose own scores are all zero (sigma = 1/2)."""
    method = ReLoop2(model=MF(dim=table.shape[1]), capacity=len(item), **fields)
    held = Holdings.of(Records.of([0], [0]), torch.zeros(1, dtype=torch.int8), 1, len(table))
    fed = Federation.start(held, method)
    memory = {"wrong/item": torch.tensor([item]), "wrong/error": torch.tensor([error])}
    private = Private({"user": torch.zeros(1, table.shape[1]), **memory})
    cohort = InProcess().cohort(method, fed.now.vault, torch.tensor([0]))
    return method.client_scores({"item": table}, private, cohort)[0]


def test_an_error_raises_its_own_item_most_and_follows_the_formula() -> None:
    table = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.0]])
    scores = corrected(table, [0, 1], [1.0, -1.0], sharpness=0.5, trust=0.3)
    # Item 2: cosines .7071 with both, so weights 1/2: .5. Item 0: cosines 1, 0, exp(2) : 1 =
    # .880797 : .119203, error .761594: .5 + .3 * .761594 = .728478. Item 3: cosines -1, 0:
    # exp(-2) : 1 = .119203 : .880797, error -.761594: .271522.
    expected = torch.tensor([0.728478, 0.271522, 0.5, 0.271522])
    assert_close(scores, expected, atol=1e-5, rtol=0)
    only = corrected(table, [0], [1.0], nearest=1)
    assert int(only.argmax()) == 0 or float(only.max() - only[0]) < 1e-6


def test_adding_a_constant_to_all_errors_changes_no_order_and_an_empty_memory_nothing() -> None:
    table = torch.randn(9, 3, generator=torch.Generator().manual_seed(1))
    one = corrected(table, [2, 5, 7], [0.3, -0.2, 0.6])
    two = corrected(table, [2, 5, 7], [0.5, 0.0, 0.8])
    assert torch.equal(torch.argsort(one), torch.argsort(two))
    assert_close(two - one, torch.full((9,), 0.3 * 0.2))
    assert_close(corrected(table, [-1, -1, -1], [0.0, 0.0, 0.0]), torch.full((9,), 0.5))


def test_the_memory_is_bounded_has_one_entry_per_item_and_keeps_the_newest() -> None:
    private = Private(
        {"wrong/item": torch.tensor([[3, 1, 8], [4, -1, -1]]),
         "wrong/error": torch.tensor([[0.3, 0.1, 0.8], [0.4, 0.0, 0.0]])}
    )  # fmt: skip
    new = remembered(
        private, torch.tensor([0, 0, 1]), torch.tensor([5, 3, 6]), torch.tensor([0.5, -0.3, 0.6]),
        torch.tensor([2, 1, 0]) << 24,
    )  # fmt: skip
    # Client 0: 3 before 5 by their bits, then 1, the elder of what was there; 8 falls out.
    assert new["wrong/item"].tolist() == [[3, 5, 1], [6, 4, -1]]
    assert_close(new["wrong/error"], torch.tensor([[-0.3, 0.5, 0.1], [0.6, 0.4, 0.0]]))


def test_memories_of_many_are_kept_as_one_person_after_the_other_would() -> None:
    capacity, items, draw = 7, 30, torch.Generator().manual_seed(5)
    held = torch.full((12, capacity), -1)
    error = torch.zeros(12, capacity)
    new: list[tuple[int, int, float, int]] = []
    expected: list[list[tuple[int, float]]] = []
    for c in range(12):
        mine = torch.randperm(items, generator=draw).tolist()[: c % (capacity + 1)]
        held[c, : len(mine)] = torch.tensor(mine)
        error[c] = torch.where(held[c] >= 0, torch.randn(capacity, generator=draw), 0.0)
        said = torch.randperm(items, generator=draw).tolist()[: 3 * (c % 5)]
        order = torch.randperm(100, generator=draw).tolist()[: len(said)]
        fresh = [(i, float(torch.randn(1, generator=draw))) for i in said]
        new += [(c, *entry, bits) for entry, bits in zip(fresh, order, strict=True)]
        first = [entry for _, entry in sorted(zip(order, fresh, strict=True))]
        old = [(i, float(error[c, m])) for m, i in enumerate(mine) if i not in said]
        expected.append((first + old)[:capacity])
    owner, item, wrong, bits = (torch.tensor(column) for column in zip(*new, strict=True))
    private = Private({"wrong/item": held, "wrong/error": error})
    after = remembered(private, owner, item, wrong, bits << 24)
    for c, kept in enumerate(expected):
        assert after["wrong/item"][c].tolist() == [i for i, _ in kept] + [-1] * (
            capacity - len(kept)
        )
        assert_close(after["wrong/error"][c, : len(kept)], torch.tensor([e for _, e in kept]))
    assert {len(kept) for kept in expected} > {0, capacity}


def test_what_is_remembered_is_how_wrong_the_client_still_is() -> None:
    method = replace(LEARNERS["RLP2"], capacity=40, least=0.0)
    fed = begun(method)
    ids, clock = torch.tensor([0]), fed.clock.at(1)
    public, vault = fed.now.state.public, fed.now.vault
    cohort = InProcess().cohort(method, vault, ids)
    update, after = method.client_train(public, vault.read(ids), cohort, clock)
    rows = update.entries["item"]
    local = {int(i): public["item"][i] + v for i, v in zip(rows.index, rows.value, strict=True)}
    kept = after["wrong/item"][0].tolist(), after["wrong/error"][0].tolist()
    found = {i: e for i, e in zip(*kept, strict=True) if i >= 0}
    assert found.keys() == local.keys()
    mine = set(cohort.train.item.tolist())
    for item, row in local.items():
        expected = (item in mine) - float(torch.sigmoid(row @ after["user"][0]))
        assert found[item] == pytest.approx(expected, abs=1e-9)


# -- SPP -----------------------------------------------------------------------------------------


def test_proxies_follow_the_finished_models() -> None:
    old, new = torch.zeros(2, 1), torch.tensor([[1.0], [2.0], [3.0]])
    assert_close(follow(old, new, 0.9), torch.tensor([[0.1], [0.2], [3.0]]))
    assert torch.equal(follow(None, new, 0.9), new)
    frozen = replace(LEARNERS["SPP"], stability=1.0, plasticity=0.0)
    first = blocks(frozen, many=2).now.state.public
    second = blocks(frozen, many=3)
    public = second.now.state.public
    old = len(first["reference/stable"])
    assert torch.equal(public["reference/stable"][:old], first["reference/stable"])  # M_0 for ever
    assert torch.equal(public["reference/plastic"], public["item"][: len(public["item"]) - 1])
    assert torch.equal(first["reference/stable"], first["reference/plastic"])


def drawn(method: SPP, many: int, scores: Tensor, top: Tensor) -> Tensor:
    """How often each of 6 items is drawn first, over many people alike; one list only."""
    held = Holdings.of(
        Records.of(list(range(many)), [5] * many), torch.zeros(many, dtype=torch.int8), many, 6
    )
    fed = Federation.start(held, method)
    ids = torch.arange(many)
    table = scores.unsqueeze(1)
    lists = {f"{p}/list": top.repeat(many, 1) for p in ("stable", "plastic")}
    labels = {f"{p}/label": torch.zeros(many, len(top)) for p in ("stable", "plastic")}
    private = Private({"user": torch.ones(many, 1), **lists, **labels})
    cohort = InProcess().cohort(method, fed.now.vault, ids)
    found = method.client_draw({"item": table}, private, cohort, Clock(3).at(1))["item"]
    assert bool((found[:, 1] == -1).all())  # equal lists are one proxy
    return torch.bincount(found[:, 0], minlength=6)


def test_items_are_drawn_by_the_gap_of_ranks() -> None:
    # The model ranks 4, 3, 2, 1, 0 (item 5 is the client's own); the proxy 0, 1, 2, 3.
    scores, top = torch.tensor([0.0, 1, 2, 3, 4, 5]), torch.tensor([0, 1, 2, 3])
    method = SPP(model=MF(dim=1), reach=4, draws=1, gap_scale=0.0)
    alike = drawn(method, 4000, scores, top)
    assert alike[:4].sum() == 4000
    assert float((alike[:4] / 4000 - 0.25).abs().max()) < 0.03  # uniform over the list
    # Gaps r_M - r_X: 4 - 0, 3 - 1, 2 - 2, 1 - 3 = 4, 2, 0, -2: weights exp of half of that.
    law = torch.softmax(torch.tensor([2.0, 1.0, 0.0, -1.0]), 0)
    biased = drawn(replace(method, gap_scale=0.5), 4000, scores, top)
    assert_close(biased[:4] / 4000, law, atol=0.03, rtol=0)
    certain = drawn(replace(method, gap_scale=1e3), 50, scores, top)
    assert int(certain[0]) == 50
    same = drawn(replace(method, gap_scale=1e3), 4000, -scores, top)  # the model agrees: no gap
    assert float((same[:4] / 4000 - 0.25).abs().max()) < 0.03


def test_of_two_labels_the_larger_stays() -> None:
    item = torch.tensor([[3, 4, 3, -1], [2, 2, -1, -1]])
    label = torch.tensor([[0.2, 0.5, 0.6, 0.0], [0.7, 0.7, 0.0, 0.0]])
    expected = [[True, False, False, False], [False, True, False, False]]
    assert duplicates(item, label).tolist() == expected


def test_spp_without_weight_is_fine_tuning_and_its_weight_pales() -> None:
    same_model(blocks(replace(LEARNERS["SPP"], distil=0.0)).run(2), blocks(LEARNERS["FT"]).run(2))
    fed = blocks(LEARNERS["SPP"])
    assert int(fed.now.state.public["reference/begun"]) == fed.now.state.round


def test_a_replayed_item_of_spp_weighs_lambda_samples_and_fades() -> None:
    fed, plain = blocks(LEARNERS["SPP"]).run(1), blocks(LEARNERS["FT"])
    m, vault, ids = LEARNERS["SPP"], fed.now.vault, torch.tensor([0])
    public, private = fed.now.state.public, vault.read(ids)
    cohort, clock = InProcess().cohort(m, vault, ids), fed.clock.at(fed.now.state.round + 1)
    replay = {"item": torch.tensor([[2, 7, -1, -1]]), "label": torch.tensor([[0.9, 0.2, 0, 0]])}
    private = private.with_(**{f"round/{n}": v for n, v in replay.items()})
    plan = m.client_plan(public, private, cohort, clock.step(0))
    work = Work.begin([plan], ["item", "user"], ("item",), public, private.values, cohort)
    batch: Batch = next(iter(work.batches(plan)))
    ours = m.client_loss(work, batch, public, private, cohort, clock)
    theirs = plain.method.client_loss(work, batch, public, private, cohort, clock)
    p = torch.sigmoid(public["item"][[2, 7]] @ private["user"][0])
    q = torch.tensor([0.9, 0.2])
    bce = -(q * p.log() + (1 - q) * (1 - p).log()).sum()
    # The second round of the block: lambda exp(-1 / 10). A batch has 6 samples, and its loss is
    # their mean: CCD's sum over replayed items is divided by 6 as well.
    expected = 0.5 * 0.904837 * float(bce) / 6
    assert float((ours - theirs).detach()) == pytest.approx(expected, rel=1e-5)
