"""What single updates tell: planted answers, chance, defences, and that noise cannot be undone."""

from __future__ import annotations

import json
import math
import random  # noqa: TID251 - to show that reseeding it changes nothing
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rescind.audits import update_leak as leak
from rescind.audits.defences import Defence, defences, noise_for, noisy_total, with_dummies
from rescind.audits.update_leak import View
from rescind.cli import app
from rescind.cli import main as entry
from rescind.cli.leak import rows_of
from rescind.core.clock import Clock
from rescind.core.cohort import Cohort, Lot
from rescind.core.executor import InProcess
from rescind.core.guards import Clip, Gaussian, Laplace
from rescind.core.update import Rows, Update
from rescind.data.sources.synthetic import synthetic
from rescind.errors import ConfigError, DataError
from rescind.experiments import update_leaks as leaks
from rescind.experiments.update_leaks import BAR, Case, cases, measure, opened, popular_guess, views
from rescind.methods.baselines.fedavg import FedAvg
from rescind.methods.baselines.softmax import Softmax
from rescind.methods.sharing.fedshare import FedShare
from rescind.models.bag import Bag
from rescind.models.lightgcn import LightGCN
from rescind.models.mf import MF
from rescind.privacy.gaussian import epsilon_of
from worlds import randoms

HERE = Path(__file__).parents[2]
SMALL = {"users": 120, "items": 500, "interactions": 3600}


@pytest.fixture(scope="module")
def people():
    return synthetic(**SMALL)


def planted(
    people: int, items: int, own: int, other: int, dim: int = 8
) -> tuple[View, torch.Tensor]:
    """Own items move along +u, others along -u, each person with a u of their own."""
    order = torch.argsort(randoms(people, items, purpose="order"), dim=1)
    truth = torch.zeros(people, items, dtype=torch.bool)
    truth.scatter_(1, order[:, :own], True)
    sent = truth.clone()
    sent.scatter_(1, order[:, own : own + other], True)
    size = randoms(people, items, purpose="size").abs() + 0.1
    along = torch.where(truth, size, -size) * sent
    return View(along.unsqueeze(2) * randoms(people, 1, dim, purpose="u"), sent), truth


# -- the attack -----------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [12, 40])
def test_positives_planted_in_an_update_are_all_found(other):
    view, truth = planted(20, 80, 10, other)
    right = leak.score_attack(leak.split(view), truth, Clock(0))
    if other == 40:  # four to one: the smaller side is the positive one
        assert right.found.tolist() == [1.0] * 20
        assert right.precision.tolist() == right.recall.tolist() == [1.0] * 20
    else:  # alike in number and drawn from the same items: nothing tells the sides apart
        assert set(right.found.tolist()) <= {0.0, 1.0}


def test_one_negative_each_is_told_by_what_many_people_sent():
    # Everybody owns eight of the first ten items; negatives are drawn from the other ninety.
    truth = torch.zeros(30, 100, dtype=torch.bool)
    truth.scatter_(1, torch.argsort(randoms(30, 10, purpose="own"), dim=1)[:, :8], True)
    drawn = 10 + torch.argsort(randoms(30, 90, purpose="drawn"), dim=1)[:, :8]
    sent = truth.scatter(1, drawn, True)
    along = torch.where(truth, 1.0, -1.0) * sent
    view = View(along.unsqueeze(2) * randoms(30, 1, 6, purpose="u"), sent)
    assert leak.score_attack(leak.split(view), truth, Clock(0)).found.tolist() == [1.0] * 30


def test_the_split_is_the_singular_vector_of_every_person_alone():
    view, _ = planted(6, 40, 5, 20)
    fast = leak.split(view)
    for person in range(6):  # the obvious way: one decomposition after another
        rows = torch.nn.functional.normalize(view.delta[person][view.sent[person]], dim=1)
        first = torch.linalg.svd(rows).Vh[0]
        slow = rows @ first
        slow = slow if int((slow > 0).sum()) < int((slow < 0).sum()) else -slow
        assert torch.allclose(fast[person][view.sent[person]], slow, atol=1e-9)
        assert bool((fast[person][~view.sent[person]] == -math.inf).all())


def test_pure_noise_is_read_at_chance():
    delta = randoms(400, 100, 6, purpose="noise")
    truth = torch.zeros(400, 100, dtype=torch.bool)
    truth.scatter_(1, torch.argsort(randoms(400, 100, purpose="own"), dim=1)[:, :10], True)
    for exact in (True, False):
        score = leak.split(View(delta, torch.ones_like(truth), exact=exact))
        found = leak.score_attack(score, truth, Clock(0)).found
        # Hypergeometric: 10 of 100 named, 10 there, so .1 with a deviation of .0905 a person.
        assert abs(float(found.mean()) - 0.1) < 4 * 0.0905 / 400**0.5


def test_named_counts_as_one_would_by_hand():
    score = torch.tensor([[0.9, 0.8, -0.5, 0.1], [-1.0, -2.0, -3.0, 4.0]])
    truth = torch.tensor([[True, False, True, True], [False, False, False, True]])
    right = leak.score_attack(score, truth, Clock(0))
    # First: 0, 1 and 3 are named, 0 and 3 are right; all three are claimed. Second: 3 alone.
    assert right.found.tolist() == pytest.approx([2 / 3, 1.0])
    assert right.precision.tolist() == pytest.approx([2 / 3, 1.0])
    assert right.recall.tolist() == pytest.approx([2 / 3, 1.0])


def test_ties_do_not_favour_low_item_numbers():
    truth = torch.zeros(1, 1000, dtype=torch.bool)
    truth[0, :100] = True
    found = leak.score_attack(torch.zeros(1, 1000), truth, Clock(3)).found
    assert float(found) < 0.25  # 1.0 if items were taken in order


# -- real methods ---------------------------------------------------------------------------------

CASES = [
    FedAvg(),
    FedAvg(negatives=1),
    FedAvg(model=MF()),
    FedAvg(model=MF(), negatives=1),
    FedAvg(model=MF(), loss="bce"),
    FedAvg(model=Bag(dim=16)),
    FedShare(model=LightGCN(dim=16)),
    Softmax(model=Bag(dim=16)),
]


def lines_of(people, method, wanted, rounds=(1,)) -> dict:
    found = measure(people, Case("case", method), 40, rounds, wanted, 1e-5)
    return {(x["defence"], x["rounds"], x["attack"]): x for x in found}


@pytest.mark.parametrize(
    "method", CASES, ids=lambda m: f"{type(m).__name__}-{m.loss}-{m.negatives}"
)
def test_undefended_updates_name_nearly_everything_and_a_small_epsilon_nothing(people, method):
    quiet = (Clip(1.0), Gaussian(noise_for(0.1, 1e-5, 3), 1.0))
    wanted = (Defence("none"), Defence("quiet", quiet))
    lines = lines_of(people, method, wanted, (1, 3))
    # With one negative each the first round splits the rows as well, but which side is which has
    # to be told from what many people sent, and here are few people.
    assert lines["none", 1, "split"]["found"] > (0.95 if method.negatives > 1 else 0.7)
    assert lines["none", 3, "split"]["found"] > (0.95 if method.negatives > 1 else 0.85)
    for rounds in (1, 3):
        line = lines["quiet", rounds, "split"]
        # The interval is of 40 people; four of its half-widths around chance.
        width = 2 * (line["high"] - line["low"])
        assert abs(line["found"] - line["chance"]) < width
        assert line["found"] < BAR * line["chance"] + width
    assert lines["quiet", 3, "split"]["epsilon"] == pytest.approx(0.1, rel=1e-3)


def test_averaging_rounds_undoes_laplace_noise(people):
    method = FedAvg(model=MF())
    lines = lines_of(people, method, (Defence("noise", (Laplace(0.05),)),), (1, 40))
    one, forty = (lines["noise", rounds, "split"] for rounds in (1, 40))
    assert one["found"] < 0.5
    assert forty["found"] > one["high"] + 0.2


def test_fresh_pseudo_items_hide_one_round_and_not_ten(people):
    wanted = (
        Defence("fresh", dummies=1.0),
        Defence("kept", dummies=1.0, kept=True),
    )
    lines = lines_of(people, FedAvg(model=MF()), wanted, (1, 10))
    assert lines["fresh", 1, "split"]["found"] == pytest.approx(0.5, abs=0.1)
    assert lines["fresh", 10, "split"]["found"] > 0.95
    assert lines["kept", 10, "split"]["claimed"]["precision"] == pytest.approx(0.5, abs=0.1)


def test_a_sum_of_ten_tells_less_than_one_update(people):
    wanted = (Defence("none"), Defence("sum", summed=10))
    lines = lines_of(people, FedAvg(), wanted)
    assert lines["sum", 1, "split"]["high"] < lines["none", 1, "split"]["low"]


def test_imia_finds_more_than_the_rows_give_away(people):
    lines = lines_of(people, FedAvg(negatives=1), (Defence("none", shadowed=True),))
    line = lines["none", 1, "IMIA"]
    assert line["low"] > line["rows"]
    assert line["rows"] > line["chance"]


def test_imia_names_only_rows_that_were_sent_and_as_many_as_there_are(people):
    fed, ids = opened(people, FedAvg(negatives=2), 10, 0)
    (_, public, seen), *_ = views(fed, ids, (Defence("none"),), (1,))
    count = torch.arange(10) + 3
    score = leak.imia(fed.method, public, seen["none"], count, Clock(5), turns=40)
    assert ((score > 0).sum(1) >= count).all()
    assert not bool(((score > 0) & ~seen["none"].sent).any())


def test_a_view_is_what_each_device_alone_would_send(people):
    method = FedAvg(model=MF(dim=4))
    fed, ids = opened(people, method, 5, 0)
    (_, public, seen), *_ = views(fed, ids, (Defence("none"),), (1,))
    for place, client in enumerate(ids.tolist()):
        one = torch.tensor([client])
        cohort = InProcess().cohort(method, fed.now.vault, one)
        update, _ = method.client_train(public, fed.now.vault.read(one), cohort, fed.clock.at(1))
        rows = update.entries["item"]
        mine = torch.zeros(fed.world.sizes.items, 4)
        mine[rows.index] = rows.value
        assert torch.allclose(seen["none"].delta[place], mine, atol=1e-7)
        assert seen["none"].sent[place].nonzero().squeeze(1).tolist() == rows.index.tolist()


def test_watched_people_lend_nothing(people):
    fed, ids = opened(people, FedAvg(), 30, 0)
    assert len(fed.world.shared) > 0
    assert not set(ids.tolist()) & set(fed.world.shared.client.tolist())


def test_every_method_that_sends_trained_rows_is_attacked(people):
    names = {case.name for case in cases(people)}
    expected = ["FedAvg, LightGCN", "FedAvg, MF", "FedAvg, MF, bce", "FedShare, LightGCN"]
    assert {*expected, "Softmax, Bag"} <= names
    for name in ("Popularity", "EASE", "Gram", "ItemKNN", "Central"):
        assert not any(found.startswith(f"{name},") for found in names)


# -- defences -------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", [Laplace(0.3), Gaussian(0.3, 1.0)])
def test_one_draw_for_all_rounds_has_the_law_of_a_draw_in_each(guard):
    clients, items, dim, rounds = 4, 500, 8, 5
    empty = torch.zeros(0, dtype=torch.int64)
    quiet = Update(clients, {"item": Rows(empty, empty, torch.zeros(0, dim), items)})
    slow = sum(guard.each(quiet, leaves=True).entries["item"].value for _ in range(rounds))
    fast = noisy_total(torch.zeros(clients, items, dim), guard, rounds)
    many = clients * items * dim
    for noise in (slow, fast):
        each = noise.double().flatten()
        variance = rounds * (2 * 0.3**2 if isinstance(guard, Laplace) else 0.3**2)
        # The fourth moment of a sum of T is 3 + (excess of one) / T; Laplace has an excess of 3.
        fourth = 3 + (3 / rounds if isinstance(guard, Laplace) else 0)
        assert float(each.var()) == pytest.approx(variance, rel=6 * math.sqrt(fourth / many))
        assert float((each**4).mean()) / variance**2 == pytest.approx(fourth, rel=0.15)


@pytest.mark.parametrize("defence", defences(10, (8.0, 1.0), 1.0, 1e-5)[1:7], ids=lambda d: d.name)
def test_who_reseeds_everything_and_subtracts_is_left_with_more_noise(people, defence):
    fed, ids = opened(people, FedAvg(model=MF(dim=4)), 5, 0)

    def seen() -> torch.Tensor:
        torch.manual_seed(0)  # noqa: TID251
        np.random.seed(0)  # noqa: TID251
        random.seed(0)
        (_, _, found), *_ = views(fed, ids, (defence,), (1,))
        return found[defence.name].delta

    clean = views(fed, ids, (Defence("none"), Defence("clip", (Clip(1.0),))), (1,))
    (_, _, control), *_ = clean
    stream = "clip" if any(isinstance(g, Clip) for g in defence.guards) else "none"
    sent, again = seen(), seen()
    noise, guessed = sent - control[stream].delta, again - control[stream].delta
    # Had the noise followed from a seed, nothing would be left; two independent draws leave
    # sqrt(2) times the deviation.
    assert float((noise - guessed).std() / noise.std()) == pytest.approx(2**0.5, rel=0.1)
    assert abs(float(torch.corrcoef(torch.stack([noise.flatten(), guessed.flatten()]))[0, 1])) < 0.1


def test_pseudo_items_do_not_follow_from_the_seed(people):
    fed, ids = opened(people, FedAvg(), 5, 0)
    wanted = (Defence("fresh", dummies=1.0),)
    (_, _, one), *_ = views(fed, ids, wanted, (1,))
    (_, _, two), *_ = views(fed, ids, wanted, (1,))
    assert not torch.equal(one["fresh"].sent, two["fresh"].sent)


def test_pseudo_items_are_nobodys_own_and_as_many_as_asked_for():
    own = Lot(torch.tensor([0, 0, 0, 1]), torch.tensor([1, 4, 6, 2]), 2)
    train = Lot(torch.tensor([0, 0, 1]), torch.tensor([1, 4, 2]), 2)  # item 6 is lent
    cohort = Cohort(torch.tensor([3, 9]), 12, train, own)
    padded = with_dummies(cohort, 2.0, Clock(1))
    assert padded.train.count.tolist() == [6, 3]
    assert padded.own.count.tolist() == [7, 3]
    first = set(padded.train.item[padded.train.owner == 0].tolist())
    assert {1, 4} < first
    assert 6 not in first
    # A person draws the same alone.
    lone = Cohort(torch.tensor([9]), 12, Lot(torch.tensor([0]), torch.tensor([2]), 1),
                  Lot(torch.tensor([0]), torch.tensor([2]), 1))  # fmt: skip
    alone = with_dummies(lone, 2.0, Clock(1)).train.item.tolist()
    assert alone == padded.train.item[padded.train.owner == 1].tolist()


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_noise_for_an_epsilon_has_that_epsilon(epsilon):
    for times in (1, 100):
        found = epsilon_of(noise_for(epsilon, 1e-5, times), 1e-5, times)
        assert epsilon * (1 - 1e-3) < found <= epsilon * (1 + 1e-9)


# -- the command ----------------------------------------------------------------------------------


def asked(folder: Path, *words: str) -> list[str]:
    small = {"--data": "synthetic", "--users": "12", "--rounds": "1,2", "--out": str(folder)}
    others = [word for name in small if name not in words for word in (name, small[name])]
    return ["leak", *others, *words]


def test_the_command_writes_what_it_found_and_does_not_measure_twice(tmp_path):
    words = asked(tmp_path, "--model", "MF")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    for name in ("leak.json", "leak.png", "leak.svg", "leak.jsonl"):
        assert (tmp_path / name).stat().st_size > 0
    facts = json.loads((tmp_path / "leak.json").read_text())
    first = {(x["defence"], x["attack"], x["rounds"]): x["found"] for x in facts["lines"]}
    assert first["none", "split", 1] > 0.95
    assert f"{first['Laplace 0.5', 'split', 2]:.3f}" in done.output
    again = CliRunner().invoke(app, [*words, "--json"])
    # Noise is drawn anew, so equal lines mean that they were read from leak.jsonl.
    assert json.loads(again.output.splitlines()[-1])["lines"] == facts["lines"]


def test_json_of_everything_holds_what_was_peeled(tmp_path, monkeypatch):
    one = leaks.cases(synthetic(), None, "MF")
    monkeypatch.setattr(leaks, "cases", lambda *asked: one)  # all of them take a minute
    done = CliRunner().invoke(app, [*asked(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.output.splitlines()[-1])
    assert {line["case"] for line in facts["lines"]} == {one[0].name}
    kept = json.loads((tmp_path / "peeling.json").read_text())
    assert facts["peeling"] == kept
    assert max(line["found"] for line in kept["lines"]) > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rounds", "0"), "whole numbers from 1 on"),
        (("--epsilon", "-1"), "numbers above 0"),
        (("--delta", "2"), "delta must lie between 0 and 1"),
        (("--clip", "0"), "--clip must be"),
        (("--method", "FedAvgg"), "did you mean 'FedAvg'"),
        (("--method", "Popularity"), "this attack does not apply"),
        (("--method", "Softmax", "--model", "MF"), "MF keeps user on each device"),
        (("--data", "nowhere"), "nowhere"),
        (("--users", "100000"), "cannot observe 100000 users"),
    ],
)
def test_what_cannot_be_asked_is_said_and_ends_with_2(tmp_path, monkeypatch, capfd, words, said):
    monkeypatch.setattr("sys.argv", ["rescind", *asked(tmp_path, *words)])
    with pytest.raises(SystemExit) as end:
        entry()
    assert end.value.code == 2
    error = capfd.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_people_that_do_not_fit_into_memory_are_refused(people, monkeypatch):
    monkeypatch.setattr("rescind.experiments.update_leaks.CELLS", 1000)
    with pytest.raises(ConfigError, match="Observe at most"):
        measure(people, Case("x", FedAvg()), 20, (1,), (Defence("none"),), 1e-5)
    with pytest.raises(ConfigError, match="rounds from 1"):
        measure(people, Case("x", FedAvg()), 20, (0,), (Defence("none"),), 1e-5)
    with pytest.raises(DataError, match="cannot observe"):
        popular_guess(people, 10_000, 0)


def strongest(facts, cases, defences):
    """Some cases and defences, with the strongest attack on each."""
    best = {}
    for line in sorted(facts["lines"], key=lambda line: line["found"]):
        if line["case"] in cases and line["defence"] in defences:
            best[line["case"], line["defence"], line["rounds"]] = line | {"attack": "split"}
    order = {place: n for n, place in enumerate(dict.fromkeys(map(place_of, facts["lines"])))}
    return facts | {"lines": sorted(best.values(), key=lambda line: order[place_of(line)])}


def place_of(line):
    """Case, defence and rounds of one line."""
    return line["case"], line["defence"], line["rounds"]


def markdown(facts: dict) -> str:
    """All lines as a Markdown table: a column per case, all numbers of rounds in a cell."""
    windows, lines = facts["rounds"], facts["lines"]
    names = list(dict.fromkeys(line["case"] for line in lines))
    by_place = {tuple(x[n] for n in ("case", "defence", "attack", "rounds")): x for x in lines}
    out = [f"| what the server sees | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for defence, attack, _ in rows_of(lines, windows):
        cells = []
        for case in names:
            found = [by_place.get((case, defence, attack, n)) for n in windows]
            cells.append(" / ".join(f"{line['found']:.2f}" for line in found if line))
        title = defence if attack == "split" else f"{defence}: {attack}"
        out += [f"| {title} | {' | '.join(cells)} |"] if any(cells) else []
    chance = [next(x["chance"] for x in lines if x["case"] == case) for case in names]
    return "\n".join([*out, f"| chance | {' | '.join(f'{c:.2f}' for c in chance)} |"])


def test_the_pages_show_what_the_command_wrote():
    facts = json.loads((HERE / "recipes" / "leak" / "ml-100k.json").read_text())
    assert markdown(facts) in (HERE / "docs" / "results" / "leak.md").read_text()
    gaussian, dummies = "clip 1, Gaussian, epsilon 8 in 100 rounds", "1 pseudo-item per record"
    shown = ("none", "Laplace 0.1", "Laplace 0.5", gaussian, f"{dummies}, fresh",
             f"{dummies}, kept", "sum of 10 people")  # fmt: skip
    few = strongest(facts, ("FedShare, LightGCN", "Softmax, Bag", "FedAvg, MF"), shown)
    assert markdown(few) in (HERE / "docs" / "leak.md").read_text()
