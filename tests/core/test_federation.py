"""The value and its verbs: run, stop early, fork, restart, evaluate, recommend, query."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
import torch

from rescind.core import params
from rescind.core.executor import InProcess, OneByOne, Vault, by_role
from rescind.core.federation import Federation
from rescind.core.holdings import Holdings
from rescind.core.labels import Labels
from rescind.core.records import Arrive, Erase, Join, Records, Share, Unshare, Withdraw
from rescind.core.run_state import EarlyStop, RunState
from rescind.core.state import Private, ServerState
from rescind.core.tasks.metrics import Ranking
from rescind.core.update import Update
from rescind.core.world import Host
from rescind.errors import BoundaryError, ConfigError, DataError
from rescind.estimators.gram import Gram
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.baselines.popularity import Popularity
from rescind.models.lightgcn import LightGCN
from rescind.models.mf import MF
from worlds import held, hoarder, lendable, next_block, pairs, silent, tiny_holdings


def digests(fed: Federation) -> tuple[str, str, int]:
    now = fed.now
    return params.digest(now.state.public), params.digest(now.vault.private), now.state.round


def start(holdings: Holdings, seed: int = 7, executor=None, **settings) -> Federation:
    usual = {"model": LightGCN(dim=4, user_spread=0.04), "private_rate": 0.01}
    method = FedAvg(**{**usual, "clients_per_round": 3, **settings})
    return Federation.start(holdings, method, seed=seed, executor=executor)


@pytest.mark.parametrize(
    ("data", "method", "says"),
    [
        ("plays", FedAvg(model=MF(dim=2)), r"such as rs\.load\('ml-100k'\).*got 'plays'"),
        (None, FedAvg, r"such as rs\.methods\.Gram\(\); got <class"),
        (None, Gram(), r"such as rs\.methods\.Gram\(\); got Gram\(\)"),
    ],
)
def test_what_is_no_data_or_no_method_is_answered_with_how_to_make_one(tiny, data, method, says):
    with pytest.raises(ConfigError, match=says):
        Federation.start(tiny if data is None else data, method)


CLOSE = {"abs": 1e-5, "rel": 1e-4}
RECIPES = [
    {},
    {"model": MF(dim=3, spread=1.0), "loss": "bce", "negatives": 2, "batch_size": 3, "epochs": 2},
    {"optimiser": "adam", "batch_size": 2, "aggregate": "rows", "server_optimiser": "momentum"},
    {"aggregate": "records", "server_optimiser": "adam", "server_rate": 0.1, "decay": 0.01},
    {"optimiser": "adam", "keep_moments": True, "local_includes_shared": False},
]


@pytest.mark.parametrize("recipe", RECIPES, ids=range(len(RECIPES)))
def test_side_by_side_is_one_by_one(tiny, recipe):
    own = tiny.records[(tiny.split == 0) & (tiny.records.item % 3 == 0)]
    lent = tiny.apply(Share(own))
    results = [
        start(lent, executor=executor, **recipe).run(3)
        for executor in (InProcess(), InProcess(chunk=2, fused=False), OneByOne())
    ]
    first = results[0].now
    for fed in results[1:]:
        for one, two in ((fed.now.state.public, first.state.public),
                         (fed.now.vault.private, first.vault.private)):  # fmt: skip
            assert one.keys() == two.keys()
            for name in one:
                assert one[name].flatten().tolist() == pytest.approx(
                    two[name].flatten().tolist(), **CLOSE
                )


def test_zero_rounds_change_nothing_and_a_run_leaves_the_old_value_alone(tiny_fed):
    before = digests(tiny_fed)
    assert digests(tiny_fed.run(0)) == before
    after = tiny_fed.run(2)
    assert digests(tiny_fed) == before
    assert digests(after)[0] != before[0]
    assert digests(after)[1] != before[1]


@pytest.mark.parametrize("rounds", [-3, 2.5])
def test_rounds_that_are_no_number_of_rounds_are_refused(tiny_fed, rounds):
    with pytest.raises(ConfigError, match=rf"whole number of at least 0, got {rounds!r}"):
        tiny_fed.run(rounds)


def test_the_same_seed_gives_the_same_bits_in_one_go_or_two(tiny):
    assert digests(start(tiny).run(4)) == digests(start(tiny).run(4))
    assert digests(start(tiny).run(4)) == digests(start(tiny).run(1).run(3))
    assert digests(start(tiny, seed=8).run(4))[0] != digests(start(tiny).run(4))[0]


def test_only_sampled_clients_change_and_their_private_state_stays_private(tiny_fed):
    ids = tiny_fed.method.server_sample(
        tiny_fed.now.state, tiny_fed.world, tiny_fed.clock.at(1)
    ).tolist()
    before, after = tiny_fed.now.vault.private["user"], tiny_fed.run(1).now.vault.private["user"]
    changed = (before != after).any(1).nonzero().squeeze(1).tolist()
    assert len(ids) == 3
    assert changed == ids
    assert silent() not in ids


def test_a_round_takes_the_available_clients_of_smallest_hash(tiny):
    fed = start(tiny_holdings(clients=40, items=20))
    willing = fed.world.available.nonzero().squeeze(1)
    for round_ in range(1, 6):
        clock = fed.clock.at(round_)
        drawn = fed.method.server_sample(fed.now.state, fed.world, clock).tolist()
        hashes = dict(zip(willing.tolist(), clock.bits("sample", willing).tolist(), strict=True))
        assert drawn == sorted(sorted(hashes, key=hashes.__getitem__)[:3])


def test_everybody_is_sampled_equally_often():
    fed = start(tiny_holdings(clients=22, items=20), clients_per_round=7)
    count = torch.zeros(22)
    for round_ in range(600):
        count[fed.method.server_sample(fed.now.state, fed.world, fed.clock.at(round_))] += 1
    # 7 of 21 available ones: expected 200 with a standard deviation of 11.5.
    assert count[silent(22)] == 0
    assert float(count[:21].min()) > 150
    assert float(count[:21].max()) < 250


def test_one_who_lent_everything_trains_only_where_loans_are_trained_on(tiny):
    lent = tiny.apply(Share(lendable(tiny, 1)))
    for included, expected in ((True, [0, 1, 2, 3, 4]), (False, [0, 2, 3, 4])):
        fed = start(lent, local_includes_shared=included, clients_per_round=None)
        drawn = fed.method.server_sample(fed.now.state, fed.world, fed.clock.at(1))
        assert drawn.tolist() == expected


def test_one_who_was_never_sampled_leaves_no_trace():
    fed = start(tiny_holdings(clients=20, items=15))
    seen: set[int] = set()
    for round_ in range(1, 5):
        clock = fed.clock.at(round_)
        seen |= set(fed.method.server_sample(fed.now.state, fed.world, clock).tolist())
    never = [c for c in fed.world.available.nonzero().squeeze(1).tolist() if c not in seen]
    assert never
    assert seen
    with_them = fed.run(4)
    for client in never:
        without = fed.apply(Withdraw(client)).restart().run(4)
        assert digests(without)[0] == digests(with_them)[0]
    someone = fed.apply(Withdraw(min(seen))).restart().run(4)
    assert digests(someone)[0] != digests(with_them)[0]


def test_nobody_available_is_a_round_without_change():
    none = Holdings.of(Records.none(), torch.zeros(0), 3, 4)
    for executor in (InProcess(), OneByOne()):
        for recipe in RECIPES:
            fed = start(none, executor=executor, **recipe)
            after = fed.run(2)
            assert digests(after)[0] == digests(fed)[0]
            assert torch.equal(after.now.vault.private["user"], fed.now.vault.private["user"])
            assert after.now.state.round == 2


# -- early stopping -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Script:
    """A metric that says what it was told to, whatever the model."""

    says: Mapping[int, float] = field(default_factory=dict)
    split: str = "valid"
    mask: tuple[str, ...] = ("own",)
    block: int | None = None


def stopped(fed: Federation, says: list[float], **rule):
    """Run under a rule whose measure after round r is says[r - 1]."""
    seen = []

    def measure(self, method, now: RunState, metric, clients):
        return {"x": says[now.state.round - 1]}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Federation, "_measure", measure)
        until = EarlyStop(metric=Script(), value="x", **rule)
        done = fed.run(len(says), until=until, watch=[seen.append])
    return done, seen


def test_early_stopping_returns_the_best_round_with_its_private_state(tiny_fed):
    says = [0.1, 0.5, 0.4, 0.3, 0.2, 0.9]
    best, seen = stopped(tiny_fed, says, every=1, patience=3)
    assert digests(best) == digests(tiny_fed.run(2))
    assert [m.now.state.round for m in seen] == [1, 2, 3, 4, 5]  # 5 - 2 >= 3: stopped
    assert seen[-1].until.done
    assert [value["x"] for _, value in seen[-1].until.history] == says[:5]


def test_without_patience_nothing_stops_and_without_restore_the_last_is_kept(tiny_fed):
    best, seen = stopped(tiny_fed, [0.9, 0.1, 0.1, 0.1], every=1, patience=None)
    assert len(seen) == 4
    assert best.now.state.round == 1
    last, _ = stopped(tiny_fed, [0.9, 0.1, 0.1, 0.1], every=1, patience=None, restore=False)
    assert digests(last) == digests(tiny_fed.run(4))


def test_a_measure_that_is_not_a_number_is_never_the_best(tiny_fed):
    best, _ = stopped(tiny_fed, [math.nan, 0.2, 0.5, math.nan, 0.1], every=1, patience=9)
    assert best.now.state.round == 3


def test_where_nothing_can_be_measured_the_last_round_counts_and_nothing_stops(tiny_fed):
    last, seen = stopped(tiny_fed, [math.nan] * 5, every=2, patience=1)
    assert digests(last) == digests(tiny_fed.run(5)), "not the last measured round, which is 4"
    assert not seen[-1].until.done
    assert [r for r, _ in seen[-1].until.history] == [2, 4]
    best, seen = stopped(tiny_fed, [math.nan, 0.5, *[math.nan] * 4], every=1, patience=3)
    assert (best.now.state.round, len(seen)) == (2, 5), "control: there was a real score"


def test_a_stopping_rule_that_names_an_unknown_value_says_so(tiny_fed):
    with pytest.raises(ConfigError):
        tiny_fed.run(1, until=EarlyStop(value="HR@10", every=1))


def test_early_stopping_measures_held_out_items_for_real(tiny_fed):
    until = EarlyStop(metric=Ranking(split="valid", k=(5,)), value="NDCG@5", every=1, patience=9)
    seen = []
    best = tiny_fed.run(4, until=until, watch=[seen.append])
    history = [values["NDCG@5"] for _, values in seen[-1].until.history]
    again = [tiny_fed.run(r).evaluate("valid", 5)["NDCG@5"] for r in (1, 2, 3, 4)]
    assert history == pytest.approx(again, abs=1e-12)
    assert best.evaluate("valid", 5)["NDCG@5"] == max(history)


# -- other verbs ----------------------------------------------------------------------------------


def test_a_fork_goes_on_from_here_under_another_seed(tiny_fed):
    here = tiny_fed.run(2)
    fork = here.fork(seed=99)
    assert digests(fork) == digests(here)
    assert digests(here.fork().run(2)) == digests(here.run(2))
    assert digests(fork.run(2))[0] != digests(here.run(2))[0]
    slower = here.fork(method=replace(here.method, rate=0.001))
    assert slower.method.rate == 0.001
    assert here.method.rate != 0.001


def test_a_restart_is_a_fresh_start_on_the_same_data(tiny_fed, tiny):
    assert digests(tiny_fed.run(3).restart()) == digests(tiny_fed)
    own = tiny.records[tiny.records.client == 0]
    gone = tiny_fed.run(3).apply(Erase(own)).restart().run(2)
    never = start(tiny.apply(Erase(own))).run(2)
    assert digests(gone) == digests(never)


def test_one_who_leaves_takes_their_private_state_along(tiny_fed):
    here = tiny_fed.run(4)
    client = int((here.now.vault.private["user"] != tiny_fed.now.vault.private["user"])
                 .any(1).nonzero()[0])  # fmt: skip
    left = here.apply(Withdraw(client)).now.vault.private["user"]
    assert torch.equal(left[client], tiny_fed.now.vault.private["user"][client])
    others = [c for c in range(6) if c != client]
    assert torch.equal(left[others], here.now.vault.private["user"][others])


def test_newcomers_begin_with_the_values_they_would_have_had_from_the_start(tiny_fed):
    grown = tiny_fed.run(2).apply(next_block(clients=8, items=12))
    fresh = start(tiny_holdings(clients=8, items=12))
    assert len(grown.now.vault.private["user"]) == 8
    assert torch.equal(grown.now.vault.private["user"][6:], fresh.now.vault.private["user"][6:])
    joined = tiny_fed.run(2).apply(Join(6))
    assert torch.equal(joined.now.vault.private["user"][6], fresh.now.vault.private["user"][6])


def test_a_new_block_grows_the_table_and_moves_no_old_row(tiny_fed):
    here = tiny_fed.run(2)
    grown = here.apply(next_block(clients=6, items=15))
    assert grown.now.state.public["item"].shape == (15, 4)
    assert torch.equal(grown.now.state.public["item"][:12], here.now.state.public["item"])
    assert grown.now.state.round == 2
    assert grown.run(2).now.state.public["item"].shape == (15, 4)


@pytest.mark.parametrize("model", [MF(dim=4), LightGCN(dim=4)])
def test_a_row_starts_alike_in_a_small_and_in_a_large_table(model, tiny):
    # The protocol of models: "each row from its own index, so tables can grow".
    small = start(tiny_holdings(items=12), model=model).now.state.public["item"]
    large = start(tiny_holdings(items=15), model=model).now.state.public["item"]
    assert torch.equal(large[:12], small)


def test_roles_split_the_clients_and_everybody_else_trains():
    ids = torch.tensor([1, 4, 5, 8])
    split = {r: i.tolist() for r, i in by_role(ids, {4: "forget", 9: "forget", 8: "train"})}
    assert split == {"forget": [4], "train": [1, 5, 8]}
    assert [(r, i.tolist()) for r, i in by_role(ids, None)] == [("train", [1, 4, 5, 8])]


def test_each_role_has_its_own_sum_and_they_add_up_to_the_whole(tiny_fed):
    fed, seen = tiny_fed.fork(method=replace(tiny_fed.method, clients_per_round=None)), []
    fed.run(1, watch=[lambda moment: seen.append(moment.sums)])
    fed.run(1, roles={0: "forget", 2: "forget"}, watch=[lambda moment: seen.append(moment.sums)])
    whole, parts = seen[0]["train"], seen[1]
    assert parts["forget"].clients == 2
    assert parts["train"].clients == 3
    both = (parts["train"] + parts["forget"]).totals["item"]
    assert both.flatten().tolist() == pytest.approx(
        whole.totals["item"].flatten().tolist(), **CLOSE
    )


def test_a_hosted_client_trains_beside_the_others_in_its_own_role(tiny_fed):
    seen = []
    hosted = tiny_fed.apply(Host(6, tiny_holdings(clients=8, seed=5)))
    after = hosted.run(2, watch=[lambda moment: seen.append(moment.sums)])
    assert seen[0].keys() == {"train", "host"}
    assert seen[0]["host"].clients == 1
    assert len(after.now.hosted) == 1
    moved = after.now.hosted[0].private["user"] != hosted.now.hosted[0].private["user"]
    assert moved.any(1).nonzero().tolist() == [[6]]


def test_a_method_for_another_task_is_refused_by_name(tiny):
    with pytest.raises(BoundaryError, match=r"FedAvg with LightGCN works on ranking.*nodes"):
        start(replace(tiny, task="nodes"))


# -- robustness -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "came"),
    [
        ("flat", [20]), ("narrow", [20, 3]), ("long", [21, 4]), ("dense", [20, 3]),
        ("right", None),
    ],
)  # fmt: skip
def test_an_update_of_another_shape_is_told_of_the_function_that_made_it(shape, came):
    @dataclass(frozen=True, kw_only=True)
    class Sketch(FedAvg):
        def client_train(self, public, private, cohort, clock):
            update, private = super().client_train(public, private, cohort, clock)
            rows = update.entries["item"]
            entry = {
                "flat": replace(rows, value=rows.value[:, 0]),
                "narrow": replace(rows, value=rows.value[:, :3]),
                "long": replace(rows, size=21),
                "dense": torch.zeros(len(cohort), 20, 3),
                "right": rows,
            }[shape]
            return Update(len(cohort), {"item": entry}), private

    fed = Federation.start(tiny_holdings(12, 20), Sketch(model=MF(dim=4)), seed=0)
    if came is None:
        assert fed.run(1).now.state.round == 1
        return
    with pytest.raises(BoundaryError) as refused:
        fed.run(1)
    assert (
        f"what Sketch.client_train returned as 'item' adds up to {came}; expected [20, 4]"
    ) in str(refused.value)


def poisoned(fed: Federation, client: int) -> Federation:
    """The same with one device whose private vector is broken."""
    user = fed.now.vault.private["user"].clone()
    user[client] = math.nan
    vault = replace(fed.now.vault, private={"user": user})
    return replace(fed, now=replace(fed.now, vault=vault))


def test_one_broken_device_is_refused_and_counted_by_the_readable_path(tiny):
    seen = []
    fed = poisoned(start(tiny, clients_per_round=None, executor=InProcess(fused=False)), 0)
    after = fed.run(1, watch=[lambda moment: seen.append(moment.sums["train"])])
    assert torch.isfinite(after.now.state.public["item"]).all()
    assert seen[0].refused == {"not finite": 1}
    assert seen[0].clients == 4
    # As if it had not been there: the mean is over the four others.
    alone = start(tiny.apply(Withdraw(0)), clients_per_round=None).run(1)
    assert after.now.state.public["item"].flatten().tolist() == pytest.approx(
        alone.now.state.public["item"].flatten().tolist(), **CLOSE
    )


def test_one_broken_device_does_not_break_the_model_by_default(tiny):
    fed = poisoned(start(tiny, clients_per_round=None), 0).run(1)
    assert torch.isfinite(fed.now.state.public["item"]).all()


def test_a_refused_device_keeps_the_private_state_it_had(tiny):
    # A rate so large that the private vector explodes in its first step.
    fed = start(tiny, private_rate=1e30, rate=1e30, executor=InProcess(fused=False))
    after = fed.run(1)
    assert torch.equal(after.now.state.public["item"], fed.now.state.public["item"])
    assert torch.equal(after.now.vault.private["user"], fed.now.vault.private["user"])


# -- measuring and recommending -------------------------------------------------------------------


def test_quality_by_hand_when_the_model_is_written_by_hand():
    # One user vector (1), items score by their number: 5 is best. Client 0 owns 5, holds out 4;
    # client 1 owns nothing of note, holds out 3: ranks 1 and 3 at K = 3 (5, 4, 3).
    records = Records.of([0, 0, 1, 1], [5, 4, 0, 3])
    holdings = Holdings.of(records, torch.tensor([0, 2, 0, 2]), 2, 6)
    fed = start(holdings, model=MF(dim=1))
    state = ServerState({"item": torch.arange(6.0).unsqueeze(1)})
    vault = replace(fed.now.vault, private={"user": torch.ones(2, 1)})
    fed = replace(fed, now=RunState(state, vault))
    result = fed.evaluate(k=(1, 3))
    assert result["HR@1"] == 0.5
    assert result["HR@3"] == 1.0
    assert result["MRR@3"] == pytest.approx((1 + 1 / 3) / 2)
    assert result["NDCG@3"] == pytest.approx((1 + 1 / 2) / 2)  # log2(3 + 1) = 2
    assert fed.evaluate(k=1, clients=torch.tensor([0]))["HR@1"] == 1.0
    asked = Records.of([1, 0, 1], [2, 5, 0])
    assert fed.query(asked).tolist() == [2.0, 5.0, 0.0]
    softplus = [math.log1p(math.exp(-s)) for s in (2.0, 5.0, 0.0)]
    assert fed.query(asked, "loss").tolist() == pytest.approx(softplus, abs=1e-6)
    assert fed.query(asked, "open").tolist() == [2.0, -math.inf, -math.inf]
    held_out = Records.of([0, 1], [4, 3])
    assert fed.query(held_out).tolist() == [4.0, 3.0]  # the control: evaluation ranks them
    assert fed.query(held_out, "open").tolist() == [-math.inf, -math.inf]
    named = replace(fed, labels=Labels(("ann", "bo"), tuple("uvwxyz"), tuple("UVWXYZ")))
    best = named.recommend("ann", k=2)
    assert [(r.item, r.title, r.score, r.because) for r in best] == [
        ("x", "X", 3.0, "taste"),  # of "y" they have a record, held out
        ("w", "W", 2.0, "taste"),
    ]


def test_no_item_a_person_has_is_recommended(tiny_fed):
    fed = tiny_fed.run(2)
    later = fed.apply(next_block()).run(1)  # devices keep what was held out in earlier blocks
    for now in (fed, later):
        has = pairs(now.now.vault.holdings.records)
        assert has > held(now.now.vault.holdings, "own"), "the control: some are held out"
        for client in range(6):
            items = {int(r.item) for r in now.recommend(client, k=50)}
            assert items == set(range(12)) - {i for c, i in has if c == client}
    assert not fed.recommend(hoarder(), k=5), "has everything"


def test_a_person_without_data_gets_the_most_popular_items(tiny_fed):
    holdings = tiny_fed.now.vault.holdings
    own, has = held(holdings, "own"), pairs(holdings.records)
    count = [sum(i == item for _, i in own) for item in range(12)]
    others = [item for item in range(12) if (silent(), item) not in has]
    assert len(others) == 11, "one is held out"
    expected = sorted(others, key=lambda item: (-count[item], item))[:4]
    shown = tiny_fed.recommend(silent(), k=4)
    assert [int(r.item) for r in shown] == expected
    assert {r.because for r in shown} == {"popularity"}
    assert [r.score for r in shown] == [count[item] for item in expected]


def test_a_method_that_looks_at_nobody_says_that_its_list_is_popular(tiny):
    for method, why in ((Popularity(), "popularity"), (FedAvg(), "taste")):
        shown = Federation.start(tiny, method).run(1).recommend(0, k=3)
        assert {r.because for r in shown} == {why}


def test_popularity_counts_the_members_who_own_an_item(tiny_fed):
    left = tiny_fed.apply(Withdraw(hoarder()))
    own = held(left.now.vault.holdings, "own")
    assert left.popularity().tolist() == [sum(i == item for _, i in own) for item in range(12)]


def test_an_unknown_user_is_a_data_error_with_the_range(tiny_fed):
    for user in (6, "nobody", -1):
        with pytest.raises(DataError, match="numbered 0 to 5"):
            tiny_fed.recommend(user)


@pytest.mark.parametrize("given", ["11", 11])
def test_one_id_instead_of_a_list_is_not_read_as_its_letters(tiny_fed, given):
    with pytest.raises(ConfigError, match=rf"Write records\(0, \[{given!r}\]\)"):
        tiny_fed.records(0, given)
    with pytest.raises(ConfigError, match=rf"Write history=\[{given!r}\]"):
        tiny_fed.recommend(history=given)
    with pytest.raises(ConfigError, match=rf"Write away=\[{given!r}\]"):
        tiny_fed.request(Withdraw(1), away=given)
    assert tiny_fed.records(0, [given]).item.tolist() == [11], "the control"


@pytest.mark.parametrize("record", [(9, 0), (0, 99)])
def test_a_question_about_nobody_or_nothing_is_a_data_error(tiny_fed, record):
    with pytest.raises(DataError):
        tiny_fed.query(Records.of([record[0]], [record[1]]))


def test_records_are_named_by_original_ids(tiny):
    fed = replace(start(tiny), labels=Labels(tuple("abcdef"), tuple(f"i{n}" for n in range(12))))
    asked = fed.records("c", ["i3", "i0"])
    assert pairs(asked) == {(2, 3), (2, 0)}
    own = lendable(tiny, 1)
    lent = fed.apply(Share(own))
    assert pairs(lent.lent("b")) == pairs(own)
    assert len(lent.lent("a")) == 0
    with pytest.raises(DataError, match="no item 'i33'"):
        fed.records("a", ["i33"])


def test_masks_are_those_asked_for(tiny_fed):
    fed = tiny_fed.run(1)
    both = fed.evaluate(metric=Ranking(mask=("own", "valid"), k=(12,)))
    only = fed.evaluate(metric=Ranking(k=(12,)))
    assert both["MRR@12"] >= only["MRR@12"]
    # At K = all, somebody is shown everything open: valid items only where they are not masked.
    valid_only = fed.evaluate("valid", metric=Ranking(split="valid", mask=("own", "valid")))
    assert valid_only["HR@20"] == 0.0


def test_an_older_blocks_held_out_items_can_be_measured_later(tiny_fed):
    later = tiny_fed.apply(Arrive(Records.none(), torch.zeros(0), 6, 12))
    assert math.isnan(later.evaluate()["HR@20"])
    assert later.evaluate(metric=Ranking(block=0, k=(12,)))["HR@12"] == 1.0


# -- the vault ------------------------------------------------------------------------------------


def test_writing_to_a_vault_replaces_some_clients_and_starts_new_names_at_zero(tiny):
    vault = Vault(tiny, {"user": torch.ones(6, 2)})
    chunk = (torch.tensor([4, 1]), Private({"user": torch.tensor([[4.0, 4.0], [1.5, 1.5]]),
                                            "list": torch.tensor([[9], [8]])}))  # fmt: skip
    after = vault.write([chunk, (torch.tensor([0]), Private({"list": torch.tensor([[7]])}))])
    assert after.private["user"][:, 0].tolist() == [1.0, 1.5, 1.0, 1.0, 4.0, 1.0]
    assert after.private["list"].flatten().tolist() == [7, 8, 0, 0, 9, 0]
    assert vault.private["user"].eq(1).all()
    assert "list" not in vault.private
    assert after.read(torch.tensor([4, 0]))["list"].flatten().tolist() == [9, 7]
    assert after.nbytes == 6 * 2 * 4 + 6 * 8


def test_a_log_forgets_those_who_take_something_back(tiny_fed, tiny):
    @dataclass(frozen=True, kw_only=True)
    class Logging(FedAvg):
        logs = True

        def client_log(self, update, cohort):
            return {"item": update.entries["item"]}

    method = Logging(model=LightGCN(dim=4), clients_per_round=None)
    fed = Federation.start(tiny, method, seed=7).run(2)
    assert fed.now.vault.log.rounds == (1, 2)
    own = lendable(tiny, 0)
    lent = fed.apply(Share(own))
    for event in (Unshare(own), Erase(own), Withdraw(0)):
        left = lent.apply(event).now.vault.log
        assert {int(c) for r in (1, 2) for c in left.at(r).owner} == {1, 2, 3, 4}
    assert 0 in lent.now.vault.log.at(1).owner


def test_what_devices_receive_and_send_is_counted(tiny_fed):
    seen = []
    tiny_fed.run(1, watch=[lambda moment: seen.append(moment.sums["train"])])
    table = 12 * 4 * 4  # items x dimensions x four bytes
    assert seen[0].down == 3 * table
    assert 0 < seen[0].up <= 3 * (table + 12 * 4)
