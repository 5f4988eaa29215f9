"""The compiled forms compute what the readable form computes, and step aside where they cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from rescind.core import fast as forms
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort
from rescind.core.executor import InProcess
from rescind.core.fast import dispatch as fused
from rescind.core.fast import ego_gpu as flat
from rescind.core.federation import Federation
from rescind.core.gradient import RankingMethod
from rescind.core.holdings import Holdings
from rescind.core.method import Method
from rescind.core.records import Records
from rescind.core.state import Private
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.continual.f3crec import F3CRec
from rescind.methods.continual.finetune import FineTune
from rescind.methods.continual.kd import KD
from rescind.methods.continual.reg import Reg
from rescind.methods.continual.reloop2 import ReLoop2
from rescind.methods.continual.spp import SPP
from rescind.models.lightgcn import LightGCN
from rescind.models.mf import MF
from rescind.models.ncf import NCF
from rescind.models.pfedrec import PFedRec
from worlds import next_block, tiny_holdings

EGO = FedAvg(model=LightGCN(dim=8), clients_per_round=None)
FEDMF = FedAvg(
    model=MF(dim=8, spread=0.3),
    clients_per_round=None,
    loss="bce",
    reduce="mean",
    temperature=1.0,
    negatives=4,
    batch_size=16,
    rate=0.05,
    private_rate=0.3,
    rate_per_item=True,
)
CASES = {
    "ego": EGO,
    "ego, mean of three negatives": replace(EGO, negatives=3, reduce="mean"),
    "ego, by records": replace(EGO, aggregate="records"),
    "ego, only what was not lent": replace(EGO, local_includes_shared=False),
    "ego, a width that is no multiple of 32": replace(EGO, model=LightGCN(dim=37)),
    "ego, two widths": replace(EGO, model=LightGCN(dim=64)),
    "FedMF, several batches": FEDMF,
    "FedMF, several batches and epochs": replace(FEDMF, epochs=3),
    "FedMF, one batch": replace(FEDMF, batch_size=None),
    "FedMF, batches of one": replace(FEDMF, batch_size=1, negatives=1),
    "FedMF, sums by records": replace(FEDMF, reduce="sum", rate=0.002, aggregate="records"),
    "FedMF, width 33": replace(FEDMF, model=MF(dim=33, spread=0.3)),
    "FedNCF, linear, all rates alike": replace(FEDMF, model=NCF(dim=8)),
    "PFedRec in one step": replace(FEDMF, model=PFedRec(dim=8), epochs=2),
}
BACKBONES = {
    "FedMF": {"model": MF(dim=8, spread=0.3)},
    "FedNCF": {"model": NCF(dim=8, faster=3.0), "rate": 0.01},
    "PFedRec": {"model": PFedRec(dim=8, faster=3.0), "rate": 0.01},
}
TRAINED = {"negatives": 4, "batch_size": 16, "rate": 0.05, "private_rate": 0.3}
LEARNERS = {
    "FT": FineTune(**TRAINED),
    "FT, two epochs, by records": FineTune(**TRAINED, epochs=2, aggregate="records"),
    "FT, one batch": FineTune(**{**TRAINED, "batch_size": None}),
    "KD": KD(**TRAINED, top_n=6, distil=0.5),
    "F3CRec": F3CRec(**TRAINED, top_n=6, shift_scale=0.05, distil=0.5),
    "F3CRec, two epochs": F3CRec(**TRAINED, epochs=2, top_n=6, shift_scale=0.01, distil=0.5),
    "F3CRec, longer lists than items": F3CRec(**TRAINED, top_n=40, shift_scale=0.001),
    "F3CRec, nothing left to replay": F3CRec(**TRAINED, top_n=6, shift_scale=9.0),
    "Reg": Reg(**TRAINED, strength=0.03),
    "Reg, two epochs, by records": Reg(**TRAINED, strength=0.03, epochs=2, aggregate="records"),
    "RLP2-R": ReLoop2(**TRAINED, capacity=6, nearest=3),
    "SPP": SPP(**TRAINED, reach=6, draws=2, gap_scale=0.1),
}
SMALL = {"clients": 11, "items": 30}

needs_numba = pytest.mark.skipif(not forms.compiled(), reason="numba is not installed")


def doubled(
    method: Method, items: int = SMALL["items"]
) -> tuple[dict[str, torch.Tensor], Private, Cohort, Federation]:
    """A small federation in float64: public, private, everybody's cohort."""
    holdings = replace(tiny_holdings(**SMALL), items=items)
    fed = Federation.start(holdings, method, seed=4)
    holdings = fed.now.vault.holdings
    kept = holdings.split == 0
    lent = replace(holdings, lent=kept & (holdings.records.item % 3 == 0))
    vault = replace(fed.now.vault, holdings=lent)
    ids = torch.arange(SMALL["clients"])
    cohort = InProcess().cohort(method, vault, ids)
    private = replace(vault.read(ids), values={n: v.double() for n, v in vault.private.items()})
    return {n: v.double() for n, v in fed.now.state.public.items()}, private, cohort, fed


MANY = 2000
"""Items so many that nobody's draws are listed: each is searched for."""


@needs_numba
@pytest.mark.parametrize(
    ("name", "items"),
    [*((name, SMALL["items"]) for name in CASES), ("FedMF, several batches", MANY)],
)
def test_the_compiled_round_equals_the_readable_one(name, items):
    method = CASES[name]
    public, private, cohort, fed = doubled(method, items)
    assert items < MANY or int(cohort.train.count.max()) * 4 * method.negatives < items
    assert fused.fits(method, RankingMethod, public)
    clock = fed.clock.at(3)
    total, after = fused.client_sum(method, public, private, cohort, clock)
    update, expected = method.client_train(public, private, cohort, clock)
    folded = update.fold(cohort.weight)
    assert_close(total.totals["item"], folded.totals["item"], atol=1e-10, rtol=1e-10)
    for part, value in expected.values.items():
        assert_close(after[part], value, atol=1e-10, rtol=1e-10)
    assert_close(total.touched["item"], folded.touched["item"])
    assert (total.weight, total.clients, total.up) == (folded.weight, folded.clients, folded.up)
    assert float(folded.totals["item"].abs().max()) > 1e-3


def widened(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {n: v.double() if v.is_floating_point() else v for n, v in values.items()}


@needs_numba
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("name", LEARNERS)
def test_the_compiled_round_of_a_second_block_equals_the_readable_one(name, backbone):
    method = replace(LEARNERS[name], **BACKBONES[backbone])
    fed = Federation.start(tiny_holdings(**SMALL), method, seed=4, executor=InProcess(fused=False))
    fed = fed.run(2).apply(next_block(clients=13, items=33, seed=5)).run(1)
    vault, clock = fed.now.vault, fed.clock.at(fed.now.state.round + 1)
    ids = fed.world.available.nonzero().squeeze(1)
    cohort = InProcess().cohort(method, vault, ids)
    public, private = widened(fed.now.state.public), Private(widened(vault.read(ids).values))
    assert fused.fits(method, FineTune, public)
    total, after = method.client_sum(public, private, cohort, clock)
    update, expected = method.client_train(public, private, cohort, clock)
    folded = update.fold(cohort.weight)
    assert_close(total.totals["item"], folded.totals["item"], atol=1e-10, rtol=1e-10)
    assert after.values.keys() == expected.values.keys() == private.values.keys()
    for part, value in expected.values.items():
        assert_close(after[part], value, atol=1e-10, rtol=1e-10, msg=part)
    assert_close(total.touched["item"], folded.touched["item"])
    assert (total.weight, total.clients, total.up) == (folded.weight, folded.clients, folded.up)
    assert float(folded.totals["item"].abs().max()) > 1e-3


@needs_numba
@pytest.mark.parametrize(("nearest", "sharpness"), [(4, 0.1), (4, 1e-4), (1, 0.5), (12, 0.5)])
def test_the_compiled_error_memory_equals_the_readable_one(nearest, sharpness, monkeypatch):
    method = ReLoop2(capacity=12, nearest=nearest, sharpness=sharpness)
    clock, who = Clock(3), torch.arange(9)
    item = torch.argsort(clock.bits("held", who.unsqueeze(1), torch.arange(60)))[:, :12]
    item[0], item[1, 2:], item[2, 5:] = -1, -1, -1  # an empty memory, and two with room
    error = clock.normal("error", who.unsqueeze(1), torch.arange(12))
    memory = Private({"wrong/item": item, "wrong/error": error})
    table = clock.normal("table", torch.arange(60).unsqueeze(1), torch.arange(5))
    fast = method.client_correction(table, memory)
    monkeypatch.setattr(forms, "compiled", lambda: False)
    slow = method.client_correction(table, memory)
    assert_close(fast, slow, atol=1e-10, rtol=1e-10)
    assert not bool(slow[0].any())
    assert bool(slow[1:].any(1).all())


@needs_numba
@pytest.mark.parametrize("people", [0, 1, 12, 50])
@pytest.mark.parametrize("crowd", [0.0, 0.7, 1.0])
def test_an_error_memory_is_read_alike_where_items_crowd(people, crowd, monkeypatch):
    """Half of the items, or all, point almost the same way, and people remember a few regions."""
    method = ReLoop2(capacity=40, nearest=5)
    clock, who, items = Clock(4), torch.arange(people), torch.arange(700)
    table = clock.normal("table", items.unsqueeze(1), torch.arange(6)).double()
    crowded = items < crowd * len(items)
    table = torch.where(crowded.unsqueeze(1), 1 + table / 50, table)
    drawn = clock.normal("held", who.unsqueeze(1), items) + who.unsqueeze(1) % 3 * table[:, 0]
    item = torch.argsort(drawn, dim=1)[:, :40].contiguous()
    room = torch.arange(40) >= 1 + 7 * (who % 7).unsqueeze(1)
    item = torch.where(room & (who % 2 == 0).unsqueeze(1), -1, item)
    error = clock.normal("error", who.unsqueeze(1), torch.arange(40)).double()
    memory = Private({"wrong/item": item, "wrong/error": error})
    fast = method.client_correction(table, memory)
    monkeypatch.setattr(forms, "compiled", lambda: False)
    assert_close(fast, method.client_correction(table, memory), atol=1e-10, rtol=1e-10)
    assert fast.shape == (people, 700)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("ego")])
def test_the_flat_form_for_a_gpu_equals_the_readable_one(name):
    method = CASES[name]
    public, private, cohort, fed = doubled(method)
    clock = fed.clock.at(3)
    total, after = flat.ego_bpr(method, public, private, cohort, clock)
    update, expected = method.client_train(public, private, cohort, clock)
    folded = update.fold(cohort.weight)
    assert_close(total.totals["item"], folded.totals["item"], atol=1e-10, rtol=1e-10)
    assert_close(after["user"], expected["user"], atol=1e-10, rtol=1e-10)
    assert total.up >= folded.up


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the Triton kernel needs a GPU")
@pytest.mark.parametrize("dim", [32, 20, 7])
@pytest.mark.parametrize("negatives", [1, 4])
def test_the_triton_kernel_computes_what_the_tensor_operations_say(dim, negatives):
    method = replace(EGO, model=replace(EGO.model, dim=dim), negatives=negatives)
    client, item = torch.tensor([(c, i) for c in range(90) for i in range(40) if i % 9 < c % 9]).T
    holdings = Holdings.of(Records.of(client, item), torch.zeros_like(client), 91, 40)
    fed = Federation.start(holdings, method, seed=2, executor=InProcess("cuda"))
    cohort = fed.executor.cohort(method, fed.now.vault, torch.arange(91, device="cuda"))
    table, first = fed.now.state.public["item"], fed.now.vault.private["user"]
    numbers = torch.rand(2, 91, device="cuda")
    rest = cohort, fed.clock.at(1), negatives
    found = flat.step_for(table)(table, first, *rest, *numbers, 0.2)
    expected = flat.step(table.double(), first.double(), *rest, *numbers.double(), 0.2)
    for one, other in zip(found, expected, strict=True):
        assert_close(one.double(), other, atol=1e-6 * float(other.abs().max()), rtol=1e-5)


@needs_numba
@pytest.mark.parametrize("method", [EGO, FEDMF, replace(FEDMF, batch_size=None)])
def test_a_person_who_owns_every_item_has_no_negatives_in_either_form(method):
    client, item = torch.tensor([(c, i) for c in range(3) for i in range(9) if c != 1 or i < 4]).T
    holdings = Holdings.of(Records.of(client, item), torch.zeros_like(client), 3, 9)
    fed = Federation.start(holdings, method, seed=2)
    public = {n: v.double() for n, v in fed.now.state.public.items()}
    ids, vault = torch.arange(3), fed.now.vault
    cohort = InProcess().cohort(method, vault, ids)
    private = Private({n: v.double() for n, v in vault.private.items()})
    total, after = fused.client_sum(method, public, private, cohort, fed.clock.at(1))
    update, expected = method.client_train(public, private, cohort, fed.clock.at(1))
    folded = update.fold(cohort.weight)
    assert_close(total.totals["item"], folded.totals["item"], atol=1e-10, rtol=1e-10)
    assert_close(total.touched["item"], folded.touched["item"])
    assert_close(after["user"], expected["user"], atol=1e-10, rtol=1e-10)
    assert total.up == folded.up


class _Pulled(FedAvg):
    """A method with a loss of its own: the kernels know nothing of it."""

    def client_loss(self, work, batch, public, private, cohort, clock):
        return super().client_loss(work, batch, public, private, cohort, clock) * 2


@pytest.mark.parametrize(
    "method",
    [
        replace(EGO, optimiser="adam"),
        replace(EGO, epochs=2),
        replace(EGO, batch_size=4),
        replace(EGO, decay=0.1),
        replace(EGO, weight_decay=0.1),
        replace(EGO, loss="bce"),
        replace(FEDMF, loss="bpr"),
        replace(FEDMF, model=NCF(dim=8, layers=(4,))),
        _Pulled(model=LightGCN(dim=8)),
    ],
)
def test_what_a_kernel_does_not_compute_is_left_to_the_readable_form(method):
    public, *_ = doubled(method)
    assert not fused.fits(method, RankingMethod, public)


def test_without_numba_everything_still_runs(monkeypatch):
    fed = Federation.start(tiny_holdings(**SMALL), FEDMF, seed=1)
    fast = fed.run(2)
    monkeypatch.setattr(forms, "compiled", lambda: False)
    slow = fed.run(2)
    assert_close(fast.now.state.public["item"], slow.now.state.public["item"], atol=1e-5, rtol=1e-4)
