"""Sketch: letters. The server writes to everyone who lends, and to nobody else.

A letter holds a vector (the mean of the items its recipient lends) and a short list of items (what
other lenders lend most and the recipient does not). A device pulls its user vector towards the one
and trains on the other as extra positives. A device without a letter is plain FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from rescind import Clock, Federation, Holdings, InProcess, OneByOne, Records, Share, Unshare
from rescind.core import jagged as jag
from rescind.core.cohort import Cohort, Mail
from rescind.core.method import Method
from rescind.core.model import Model
from rescind.core.params import Params
from rescind.core.plan import Batch, Plan, Work
from rescind.core.state import Private
from rescind.core.tasks.metrics import top_k
from rescind.core.update import Rows
from rescind.models.mf import MF

# -- the sketch ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Letters(Method):
    """FedAvg with a letter to each lender."""

    model: Model = MF()
    hints: int = 10
    """How many items a letter names."""
    pull: float = 0.1
    """Weight of the distance between the user vector and the vector in the letter."""
    trust: float = 0.5
    """Weight of the loss on items that a letter names."""

    def server_mail(self, state, world, ids: Tensor, clock: Clock) -> Mail | None:
        """To each of these clients who lends: a vector, and items that other lenders have."""
        shared, items = world.shared, world.sizes.items
        to = ids[torch.isin(ids, shared.client)]
        mine = shared[torch.isin(shared.client, to)]
        owner = torch.searchsorted(to, mine.client)
        vector = jag.segment_mean(state.public["item"][mine.item], owner, len(to))
        lends = torch.zeros(len(to), items, device=to.device)
        lends[owner, mine.item] = 1.0
        popular = torch.bincount(shared.item, minlength=items)
        scores = torch.where((lends > 0) | (popular == 0), -torch.inf, popular.float())
        return Mail(to, {"vector": vector, "hints": top_k(scores, None, self.hints)})

    def client_plan(self, public: Params, private: Private, cohort: Cohort, clock: Clock) -> Plan:
        """The usual samples; what a letter names is on the shelf too."""
        owner, k = named(cohort)
        plan = super().client_plan(public, private, cohort, clock)
        return replace(plan, also=((owner, cohort.mail.values["hints"][owner, k]),))

    def client_loss(
        self,
        work: Work,
        batch: Batch,
        public: Params,
        private: Private,
        cohort: Cohort,
        clock: Clock,
    ) -> Tensor:
        """BPR + pull |u - vector|^2 + trust * mean softplus(-score) over the items named."""
        loss = super().client_loss(work, batch, public, private, cohort, clock)
        letter = cohort.mail.values
        far = (work.own["user"] - letter["vector"]).square().sum(1)
        loss = loss + self.pull * torch.where(letter["has"], far, 0.0)
        owner, k = named(cohort)
        row = work.shelf.find(owner, letter["hints"][owner, k])
        score = self.model.score({"item": work.rows["item"][row]}, work.own, owner)
        each = functional.softplus(-score)
        return loss + self.trust * jag.segment_mean(each, owner, len(cohort))


def named(cohort: Cohort) -> tuple[Tensor, Tensor]:
    """Where the letters name an item: (owner, place in the letter)."""
    letter = cohort.mail.values
    return ((letter["hints"] >= 0) & letter["has"].unsqueeze(1)).nonzero(as_tuple=True)


# -- its tests -----------------------------------------------------------------------------------

METHOD = Letters(model=MF(dim=4, spread=0.4), hints=3, rate=0.5, private_rate=0.5, batch_size=4)
ITEMS = {0: [0, 1, 2, 3, 4, 5], 1: [1, 2, 6], 2: [7], 3: [2, 6, 8, 9, 10], 4: [0, 3, 11]}
LENT = {0: [0, 1, 2], 1: [1, 2, 6], 3: [2, 6, 8]}  # clients 2 and 4 lend nothing


def records(held: dict[int, list[int]]) -> Records:
    return Records.of([c for c in held for _ in held[c]], [i for c in held for i in held[c]])


def start(method: Method, executor: InProcess | None = None) -> Federation:
    held = records(ITEMS)
    split = torch.zeros(len(held), dtype=torch.int8)
    fed = Federation.start(Holdings.of(held, split, 5, 12), method, seed=4, executor=executor)
    return fed.apply(Share(records(LENT)))


def letters(fed: Federation) -> Mail:
    mail = METHOD.server_mail(fed.now.state, fed.world, torch.arange(5), fed.clock)
    assert mail is not None
    return mail


def trained(
    fed: Federation, mail: Mail | None, ids: list[int]
) -> tuple[dict[int, dict[int, Tensor]], dict[int, Tensor]]:
    """What each client sends (item -> row), and its user vector, after training as one cohort."""
    who, vault = torch.tensor(ids), fed.now.vault
    cohort = InProcess().cohort(fed.method, vault, who, mail=mail)
    update, private = fed.method.client_train(
        fed.now.state.public, vault.read(who), cohort, fed.clock.at(1)
    )
    rows = update.entries["item"]
    assert isinstance(rows, Rows)
    sent: dict[int, dict[int, Tensor]] = {client: {} for client in ids}
    for owner, item, value in zip(rows.owner, rows.index, rows.value, strict=True):
        sent[ids[owner]][int(item)] = value
    return sent, {c: private["user"][place] for place, c in enumerate(ids)}


def same(left: dict[int, Tensor], right: dict[int, Tensor]) -> bool:
    """Bit for bit."""
    return left.keys() == right.keys() and all(torch.equal(left[i], right[i]) for i in left)


def test_letters_go_to_lenders_and_say_what_they_should() -> None:
    fed = start(METHOD)
    mail = letters(fed)
    assert mail.ids.tolist() == [0, 1, 3]
    item = fed.now.state.public["item"]
    for place, client in enumerate((0, 1, 3)):
        mean = sum(item[i] for i in LENT[client]) / 3
        assert_close(mail.values["vector"][place], mean)
    # Lent: item 2 by three people, 1 and 6 by two, 0 and 8 by one; the lower number first.
    # 0 has 0, 1, 2: left 6, 8.    1 has 1, 2, 6: left 0, 8.    3 has 2, 6, 8: left 1, 0.
    assert mail.values["hints"].tolist() == [[6, 8, -1], [0, 8, -1], [1, 0, -1]]


def test_a_letter_is_delivered_to_its_recipient_whatever_the_order() -> None:
    mail = letters(start(METHOD))
    got = mail.to(torch.tensor([4, 3, 0]))
    assert got.values["has"].tolist() == [False, True, True]
    assert got.values["hints"][1:].tolist() == [[1, 0, -1], [6, 8, -1]]
    assert float(got.values["vector"][0].abs().sum()) == 0


def test_clients_without_mail_train_as_fedavg_bit_for_bit() -> None:
    fed = start(METHOD)
    plain = fed.fork(method=Method(model=METHOD.model, rate=0.5, private_rate=0.5, batch_size=4))
    with_mail, users = trained(fed, letters(fed), [0, 1, 2, 3, 4])
    without, plain_users = trained(plain, None, [0, 1, 2, 3, 4])
    for client in (2, 4):
        assert same(with_mail[client], without[client])
        assert torch.equal(users[client], plain_users[client])
    for client in (0, 1, 3):
        assert not same(with_mail[client], without[client])


def test_nobody_can_read_anothers_letter() -> None:
    fed = start(METHOD)
    mail = letters(fed)
    before, users = trained(fed, mail, [0, 1, 2, 3, 4])
    forged = {name: value.clone() for name, value in mail.values.items()}
    forged["vector"][1] += 9.0  # the letter to client 1
    forged["hints"][1] = torch.tensor([11, 8, 3])
    after, moved = trained(fed, Mail(mail.ids, forged), [0, 1, 2, 3, 4])
    for client in (0, 2, 3, 4):
        assert same(before[client], after[client])
        assert torch.equal(users[client], moved[client])
    assert not same(before[1], after[1])
    assert not torch.equal(users[1], moved[1])
    alone = InProcess().cohort(METHOD, fed.now.vault, torch.tensor([3]), mail=mail).mail
    assert alone is not None
    assert alone.ids.tolist() == [3]
    assert {name: len(value) for name, value in alone.values.items()} == {
        "vector": 1,
        "hints": 1,
        "has": 1,
    }
    assert all(v.untyped_storage().nbytes() <= 4 * 8 for v in alone.values.values())


def trained_alone(fed: Federation, client: int) -> tuple[Tensor, Tensor]:
    """One client with the whole table and its own letter, in plain loops."""
    m, public, ids = METHOD, fed.now.state.public, torch.tensor([client])
    cohort = InProcess().cohort(m, fed.now.vault, ids, mail=letters(fed))
    clock = fed.clock.at(fed.now.state.round + 1).step(0)
    plan = Method.client_plan(m, public, fed.now.vault.read(ids), cohort, clock)
    table = public["item"].clone().requires_grad_()
    user = fed.now.vault.private["user"][client].clone().requires_grad_()
    pair = zip(*(plan.items[n].split(plan.sizes) for n in ("positive", "negative")), strict=True)
    for positive, negative in pair:
        gap = (table[positive] - table[negative]) @ user
        loss = functional.softplus(-gap).mean()
        if client in LENT:
            mean = torch.stack([public["item"][i] for i in LENT[client]]).mean(0)
            loss = loss + m.pull * ((user - mean) ** 2).sum()
            extra = {0: [6, 8], 1: [0, 8], 3: [1, 0]}[client]
            each = [functional.softplus(-(table[i] @ user)) for i in extra]
            loss = loss + m.trust * torch.stack(each).mean()
        grads = torch.autograd.grad(loss, [table, user])
        for leaf, grad in zip((table, user), grads, strict=True):
            leaf.data -= 0.5 * grad
    return table.detach(), user.detach()


@pytest.mark.parametrize("executor", [InProcess(), InProcess(chunk=2), OneByOne()])
def test_a_round_with_letters_equals_plain_loops(executor: InProcess) -> None:
    fed = start(METHOD, executor)
    state, vault = fed.now.state, fed.now.vault
    state = replace(state, public={n: v.double() for n, v in state.public.items()})
    vault = replace(vault, private={n: v.double() for n, v in vault.private.items()})
    fed = replace(fed, now=replace(fed.now, state=state, vault=vault))
    alone = [trained_alone(fed, client) for client in range(5)]
    after = fed.run(1).now
    mean = torch.stack([table for table, _ in alone]).mean(0)
    assert_close(after.state.public["item"], mean, atol=1e-10, rtol=0.0)
    users = torch.stack([user for _, user in alone])
    assert_close(after.vault.private["user"], users, atol=1e-10, rtol=0.0)


def test_who_takes_everything_back_gets_no_more_letters() -> None:
    fed = start(METHOD).apply(Unshare(records({1: [1, 2, 6]})))
    mail = letters(fed)
    assert mail.ids.tolist() == [0, 3]
    assert mail.values["hints"].tolist() == [[6, 8, -1], [0, 1, -1]]  # all lent by one person now
    nobody = fed.apply(Unshare(records({0: [0, 1, 2], 3: [2, 6, 8]})))
    assert len(letters(nobody).ids) == 0
    plain = nobody.fork(method=Method(model=METHOD.model, rate=0.5, private_rate=0.5, batch_size=4))
    quiet, loud = plain.run(2).now.state.public, nobody.run(2).now.state.public
    assert torch.equal(quiet["item"], loud["item"])
