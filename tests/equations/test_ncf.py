"""FedNCF against one plain torch network per client, linear as published and with hidden layers."""

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
from rescind.core.records import Records
from rescind.methods.continual.finetune import FineTune
from rescind.models.ncf import NCF
from rescind.models.pfedrec import PFedRec

SIZES = (2, 7, 1, 4)  # records of each client: 6, 21, 3 and 12 samples, so 1, 4, 1 and 2 batches
LINEAR = NCF(dim=4, spread=0.5, faster=3.0)
DEEP = replace(LINEAR, layers=(5, 3))
TIGHT = {"atol": 1e-10, "rtol": 0.0}


def start(model: NCF, executor: InProcess) -> Federation:
    """Start a federation in float64."""
    client = [c for c, n in enumerate(SIZES) for _ in range(n)]
    item = [(5 * c + 3 * j) % 16 for c, n in enumerate(SIZES) for j in range(n)]
    held = Holdings.of(
        Records.of(client, item), torch.zeros(len(item), dtype=torch.int8), len(SIZES), 16
    )
    method = FineTune(
        model=model, batch_size=6, negatives=2, epochs=2, rate=0.02, private_rate=0.05
    )
    fed = Federation.start(held, method, seed=3, executor=executor)
    state, vault = fed.now.state, fed.now.vault
    state = replace(state, public={n: v.double() for n, v in state.public.items()})
    vault = replace(vault, private={n: v.double() for n, v in vault.private.items()})
    return replace(fed, now=replace(fed.now, state=state, vault=vault))


def network(private: dict[str, Tensor]) -> torch.nn.Sequential:
    """Return the client's network as a torch module."""
    parts: list[torch.nn.Module] = []
    for n in range(len(private) // 2):
        weight = private[f"weight{n}"]
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
        layer.load_state_dict({"weight": weight, "bias": private[f"bias{n}"]})
        parts += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1])


def trained_alone(fed: Federation, client: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Train one client with its own copy of the whole table by torch SGD: the slow reference."""
    m, vault, clock = fed.method, fed.now.vault, fed.clock.at(fed.now.state.round + 1)
    public = fed.now.state.public
    cohort = InProcess().cohort(m, vault, torch.tensor([client]))
    mine = {n: v[client].clone() for n, v in vault.private.items()}
    items = public["item"].clone().requires_grad_()
    user = mine.pop("user").requires_grad_()
    net = network(mine)
    sgd = torch.optim.SGD(
        [
            {"params": [items], "lr": m.rate * 3.0 * len(items)},
            {"params": [user], "lr": m.private_rate * 3.0},
            {"params": net.parameters(), "lr": m.private_rate},
        ]
    )
    for epoch in range(m.epochs):
        plan = m.client_plan(public, vault.read(cohort.ids), cohort, clock.step(epoch))
        chosen = plan.items["item"].split(plan.sizes)
        labels = plan.values["label"].double().split(plan.sizes)
        for item, label in zip(chosen, labels, strict=True):
            sgd.zero_grad()
            both = torch.cat([user.expand(len(item), -1), items[item]], 1)
            functional.binary_cross_entropy_with_logits(net(both).squeeze(1), label).backward()
            sgd.step()
    after = {"user": user.detach()}
    for n, layer in enumerate(p for p in net if isinstance(p, torch.nn.Linear)):
        after |= {f"weight{n}": layer.weight.detach(), f"bias{n}": layer.bias.detach()}
    return items.detach(), after


@pytest.mark.parametrize("model", [LINEAR, DEEP], ids=["linear", "deep"])
@pytest.mark.parametrize("executor", [InProcess(), InProcess(chunk=3), OneByOne()])
def test_batches_and_epochs_equal_a_plain_loop_over_clients(model, executor) -> None:
    fed = start(model, executor)
    for _ in range(2):
        alone = [trained_alone(fed, client) for client in range(len(SIZES))]
        before = fed.now.state.public["item"]
        fed = fed.run(1)
        mean = torch.stack([items for items, _ in alone]).mean(0)
        assert_close(fed.now.state.public["item"], mean, **TIGHT)
        for name, value in fed.now.vault.private.items():
            assert_close(value, torch.stack([own[name] for _, own in alone]), **TIGHT)
        assert float((mean - before).abs().max()) > 1e-3


@pytest.mark.parametrize("model", [LINEAR, DEEP], ids=["linear", "deep"])
def test_scores_of_all_items_are_those_of_single_samples_in_any_order(model) -> None:
    fed = start(model, InProcess())
    public, private = fed.now.state.public, fed.now.vault.private
    owner = torch.tensor([3, 0, 1, 3, 1, 1])
    item = torch.tensor([0, 15, 4, 7, 4, 2])
    flat = model.score({"item": public["item"][item]}, private, owner)
    whole = model.scores(public, private)
    assert_close(flat, whole[owner, item], **TIGHT)
    for client in range(4):
        mine = {n: v[client] for n, v in private.items() if n != "user"}
        both = torch.cat([private["user"][client].expand(16, -1), public["item"]], 1)
        assert_close(whole[client], network(mine)(both).squeeze(1), **TIGHT)


def rankings(model: NCF, private: dict[str, Tensor], public: dict[str, Tensor]) -> list[list[int]]:
    return torch.argsort(model.scores(public, private), dim=1).tolist()


def test_only_hidden_layers_let_the_user_vector_change_a_ranking() -> None:
    for model, changes in ((LINEAR, False), (replace(DEEP, layers=(16,)), True)):
        fed = start(model, InProcess())
        private = dict(fed.now.vault.private)
        mixed = {**private, "user": private["user"].flip(0)}
        public = fed.now.state.public
        assert (rankings(model, mixed, public) != rankings(model, private, public)) == changes


def test_first_values_have_the_spread_of_the_spec_and_belong_to_the_id() -> None:
    model = NCF(layers=(64, 16), alike=False)
    all_, two = (model.private(torch.tensor(i), Clock(1)) for i in (list(range(200)), [7, 100]))
    for name, value in two.items():
        assert torch.equal(value, all_[name][[7, 100]])
    assert float(all_["user"].std()) == pytest.approx(1.0, abs=0.05)
    # U(+-1/8) of the 64 inputs has the standard deviation 1 / (8 sqrt(3)) = .0722
    assert float(all_["weight0"].std()) == pytest.approx(0.0722, abs=1e-3)
    assert float(all_["weight0"].abs().max()) <= 1 / 8
    assert {n: tuple(v.shape[1:]) for n, v in all_.items()} == {
        "user": (32,), "weight0": (64, 64), "bias0": (64,), "weight1": (16, 64), "bias1": (16,),
        "weight2": (1, 16), "bias2": (1,),
    }  # fmt: skip


@pytest.mark.parametrize("model", [NCF(dim=3), NCF(dim=3, layers=(4,)), PFedRec(dim=3)])
def test_devices_start_with_one_network_if_alike_is_set(model) -> None:
    ids = torch.tensor([4, 9, 2])
    same, different = (replace(model, alike=a).private(ids, Clock(1)) for a in (True, False))
    for name, value in same.items():
        equal = name != "user"  # each user has their own vector
        assert torch.equal(value[0], value[1]) == equal
        assert not torch.equal(different[name][0], different[name][1])
        assert torch.equal(value[2], replace(model).private(ids[2:], Clock(1))[name][0])
