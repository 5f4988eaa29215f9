"""The main job in one go: lend, learn, recommend, take back, with an audit and a receipt."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import which
from typing import Any

import torch

from rescind import charts
from rescind.audits.battery import NO_OP, RETRAIN
from rescind.claims import AFTER, check, rebuilt, sum_digest
from rescind.cli.progress import RoundBar
from rescind.data import Dataset
from rescind.errors import DataError
from rescind.experiment import Result, prepare, run_cell, write_facts
from rescind.federation import Federation, Recommendation
from rescind.forgetting import Evidence, forget
from rescind.methods.fedshare import FedShare
from rescind.methods.gram import Gram
from rescind.methods.popularity import Popularity
from rescind.params import digest, write_atomically
from rescind.receipt import Issued, write
from rescind.receipt_page import page as page_of
from rescind.recipe import Cell, DataSettings, RunSettings, SharingSettings
from rescind.records import Erase, Records, Share
from rescind.report import Page
from rescind.sharing import ALL, NOTHING, PART, draw_groups, draw_regret
from rescind.storage import save_federation
from rescind.withheld import Withheld

GROUPS = {ALL: "lend everything", PART: "lend a part", NOTHING: "lend nothing"}


ADDITIVE = "additive"
"""The folder of the model that forgets by subtraction, beside the report."""
REGRET = 0.3
"""The share of lenders who take their loans back, as in FedShare V-C. One person's few records are
too few for any audit; thousands are not."""


@dataclass(frozen=True)
class Erasure:
    """People erase what they lent, and the model is trained again without it."""

    user: str
    """One of them, whose recommendations are shown."""
    people: int
    lent: Records
    evidence: Evidence
    before: Federation
    after: Federation
    shown_before: list[Recommendation]
    shown_after: list[Recommendation]

    def scores(self) -> dict[str, list[float]]:
        """How the two models score the erased records of people who still have others.

        Who erased all they had gets what is popular, so there is nothing to compare.
        """
        shown = self.lent[self.after.world.available[self.lent.client]]
        return {
            "before": self.before.query(shown).tolist(),
            "after": self.after.query(shown).tolist(),
        }


def play(out: Path, rounds: int, seed: int, synthetic: bool, picture: Path | None) -> None:
    """Run the demonstration and say what was done, where it is, and what to try next."""
    print("1. Data")
    dataset = obtain(synthetic)
    cell = Cell(
        name="demo",
        data=DataSettings(name=dataset.name),
        sharing=SharingSettings(),
        method=FedShare(),
        run=RunSettings(seed=seed, rounds=rounds),
    )
    print(
        f"   {dataset.name}: {len(dataset.users)} people, {len(dataset.items)} items, "
        f"{len(dataset)} interactions, from {dataset.source}"
    )
    print(f"   {dataset.terms}")
    print("2. People lend; devices train; the server only sees sums")
    with RoundBar("   training", rounds) as bar:
        result = run_cell(cell, out, watch=(bar,), dataset=dataset)
    lending = groups_table(result.fed)
    for name, people, records in lending:
        print(f"   {people:4d} people {name}: {records} records")
    floor = Federation.start(dataset, Popularity(), seed).run(1).evaluate()
    say_quality("   popularity   ", floor)
    say_quality("   federated    ", result.metrics)
    begun = time.perf_counter()
    additive = counted(result.fed, dataset, seed)
    seconds = time.perf_counter() - begun
    say_quality("   additive     ", additive.evaluate(), f"one round, {seconds:.1f} s, no gradient")
    erasure = take_back(result.fed, additive, result.facts["data"]["digest"], out / ADDITIVE)
    quality = erasure.after.evaluate()
    say_quality("   after erasure", quality)
    made = draw(result, floor, quality, erasure)
    finish(out, result, floor, quality, erasure, lending, made)
    for path in filter(None, (out / "demo.png", picture)):
        charts.png(made, path)
    closing(out, erasure)


def obtain(synthetic: bool) -> Dataset:
    """ML-100K, or a synthetic world where it cannot be had."""
    if not synthetic:
        try:
            return prepare(DataSettings(name="ml-100k"))
        except DataError as error:
            print(f"   ML-100K cannot be obtained here: {error}")
            print(
                "   Going on with the built-in SYNTHETIC world; its numbers mean nothing "
                "beyond this demonstration."
            )
    return prepare(DataSettings(name="synthetic"))


def groups_table(fed: Federation) -> list[tuple[str, int, int]]:
    """How many people lend how much."""
    groups = draw_groups(fed.world.sizes.clients, fed.clock)
    lent = torch.bincount(fed.world.shared.client, minlength=fed.world.sizes.clients)
    return [
        (name, int((groups == g).sum()), int(lent[groups == g].sum())) for g, name in GROUPS.items()
    ]


def counted(fed: Federation, dataset: Dataset, seed: int) -> Federation:
    """The same people and the same loans under the additive learner, which counts them once."""
    additive = Federation.start(dataset, Gram(), seed)
    return additive.apply(Share(fed.world.shared)).run(1)


def subtract(additive: Federation, lent: Records, user: str, data: str, folder: Path) -> None:
    """Take the loans out of the additive learner's sum, with a proof anybody can repeat."""
    mine = lent[lent.client == additive.labels.client(user, additive.world.sizes.clients)]
    additive.method.unlearn(additive, Erase(mine))  # compiles or loads what is timed next, once
    begun = time.process_time()
    additive.method.unlearn(additive, Erase(mine))
    alone = time.process_time() - begun
    begun = time.process_time()
    after, evidence = forget(additive, Erase(lent), audits="none", data=data)
    together = time.process_time() - begun
    save_federation(after, folder / "model")
    (folder / "receipt.key").unlink(missing_ok=True)  # of an earlier demonstration
    write(Issued(evidence.receipt, evidence.key), folder / "receipt.json")
    proof = check(evidence.receipt, after, "hand")
    before, stated = sum_digest(additive.now.state.own), evidence.receipt.claims[AFTER]
    print(
        f"   additive model: user {user} subtracted in {1000 * alone:.0f} ms, "
        f"everybody in {1000 * together:.0f} ms of CPU"
    )
    print(f"     sum before                   {short(before)}")
    print(f"     sum after, by subtraction    {short(stated)}")
    print(f"     sum of what remains, anew    {short(sum_digest(rebuilt(after)))}")
    print(f"   proof: {'exact, bit for bit' if proof.holds else 'FAILED: ' + proof.says}")


def short(digest: str) -> str:
    """The beginning of a digest, for people."""
    return digest.removeprefix("sha256:")[:16]


def take_back(fed: Federation, additive: Federation, data: str, folder: Path) -> Erasure:
    """Recommend for somebody who lent a part; they and others erase what they lent; again.

    folder: where the additive learner that forgot goes, with its receipt
    """
    lent = draw_regret(fed.world.shared, fed.clock, REGRET)
    count = torch.bincount(lent.client, minlength=fed.world.sizes.clients)
    groups = draw_groups(fed.world.sizes.clients, fed.clock)
    client = int(torch.where(groups == PART, count, 0).argmax())
    user, people = fed.labels.user_id(client), int((count > 0).sum())
    shown = fed.recommend(user, 10)
    print(f"3. User {user} gets recommendations")
    for place, item in enumerate(shown[:5], 1):
        print(f"   {place}. {item.title or 'item ' + item.item}")
    print(f"4. User {user} and {people - 1} others erase the {len(lent):,} records they lent")
    subtract(additive, lent, user, data, folder)
    print("   federated model: has no sum to subtract from, so the same rounds without them")
    with RoundBar("   training again", fed.now.state.round) as bar:
        after, evidence = forget(
            replace(fed, watch=(bar,)), Erase(lent), data=data, watch=say_retrains
        )
    after = replace(after, watch=())
    say_audit(evidence)
    return Erasure(user, people, lent, evidence, fed, after, shown, after.recommend(user, 10))


def say_retrains(there: int, wanted: int) -> None:
    """How far the audit is."""
    if there == 0:
        print(f"5. Audit: {wanted} models are trained without the records, to compare with")


def say_audit(evidence: Evidence) -> None:
    """The verdict, and what the same audit says of doing nothing."""
    report = evidence.report
    if report is None:
        return
    print(f"   verdict on the new model: {report.verdict}")
    for role, verdict in report.subjects.items():
        if role in (NO_OP, RETRAIN):
            print(f"   control, {role}: {verdict}")


def draw(result: Result, floor: dict[str, float], after: dict[str, float], erasure: Erasure) -> Any:
    """The picture: learning above the floor, quality kept, erased records scored like unseen."""
    made, (one, two, three) = charts.figure(3)
    history = result.facts["per_round"]
    valid_floor = (
        Federation.start(erasure.before.now.vault.holdings, Popularity(), erasure.before.clock.seed)
        .run(1)
        .evaluate("valid")["NDCG@20"]
    )
    charts.curve(
        one,
        [h["round"] for h in history],
        [h["NDCG@20"] for h in history],
        "NDCG@20 (validation)",
        valid_floor,
    )
    one.set_title("Devices learn together", fontsize=12)
    charts.bars(
        two,
        {
            "popularity": floor["NDCG@20"],
            "federated": result.metrics["NDCG@20"],
            "after\nerasure": after["NDCG@20"],
        },
        "NDCG@20 (test)",
        (charts.GREY, charts.BLUE, charts.GREEN),
    )
    two.set_title("Quality before and after an erasure", fontsize=12)
    charts.histograms(
        three, erasure.scores(), "score of the erased records", (charts.ORANGE, charts.GREEN)
    )
    three.set_title("Scores of what was taken back", fontsize=12)
    return made


def finish(
    out: Path,
    result: Result,
    floor: dict[str, float],
    after: dict[str, float],
    erasure: Erasure,
    lending: list[tuple[str, int, int]],
    made: Any,
) -> None:
    """Replace the model by the one that forgot; write receipt, run.json and the report."""
    save_federation(erasure.after, out / "model")
    evidence = erasure.evidence
    (out / "receipt.key").unlink(missing_ok=True)  # of an earlier demonstration
    write(Issued(evidence.receipt, evidence.key), out / "receipt.json")
    withheld = Withheld().after(Erase(erasure.lent), erasure.lent, erasure.before.labels)
    withheld.write(out)
    findings = evidence.report.findings if evidence.report else None
    write_atomically(out / "receipt.html", page_of(evidence.receipt, findings).encode())
    scores = erasure.scores()
    means = {when: sum(v) / max(len(v), 1) for when, v in scores.items()}
    facts = {
        **result.facts,
        "model": {"public": digest(erasure.after.now.state.public)},
        "demo": {
            "popularity": floor,
            "after_erasure": after,
            "erased_records": len(erasure.lent),
            "verdict": erasure.evidence.receipt.verdict,
            "mean_score_of_erased": means,
        },
    }
    write_facts(out, facts)
    page = Page("rescind: lend, learn, take back")
    data = result.facts["data"]
    page.text(
        f"{data['users']:,} people and {data['items']:,} items of {data['name']} "
        f"({data['source']}). Each device trained on its own records; the server saw sums. "
        f"Then {erasure.people} people erased what they had lent."
    )
    page.chart(
        charts.svg(made),
        "Validation quality over rounds beside item popularity; test "
        "quality before and after an erasure; scores of the erased records.",
    )
    page.heading("Who lends what")
    page.table(["group", "people", "records lent"], lending)
    page.heading("Quality on the test set, full ranking, training items masked")
    names = ["HR@20", "NDCG@20", "Recall@20", "coverage@20", "popularity@20"]
    rows: list[list[object]] = [
        ["item popularity", *[floor[n] for n in names]],
        ["federated", *[result.metrics[n] for n in names]],
        ["after erasure", *[after[n] for n in names]],
    ]
    page.table(["model", *names], rows)
    page.heading(f"{erasure.people} people erase {len(erasure.lent):,} records")
    page.text(
        f"The mean score of the erased records went from {means['before']:.3f} to "
        f"{means['after']:.3f}. The same rounds were made again without them, with the same clock, "
        f"so this is exact: nothing was learnt from them. The receipt beside this page "
        f"(receipt.html, receipt.json) says so and is signed."
    )
    if evidence.report is not None:
        page.heading(f"The audit: {evidence.report.verdict}")
        page.text(
            "Each check measures the new model beside models that never had the records, and "
            "beside doing nothing. A check that could not notice doing nothing is powerless and "
            "does not count."
        )
        page.table(
            ["check", "verdict", "after", "retrained", "doing nothing"],
            [
                [f.check, f.verdict, f.value or "", f.reference or "", f.controls.get(NO_OP, "")]
                for f in evidence.report.findings
                if f.value is not None
            ],
        )
    page.heading(f"What user {erasure.user}, one of them, is shown")
    both = zip(erasure.shown_before, erasure.shown_after, strict=False)
    page.table(
        ["recommended before", "recommended after"],
        [[a.title or a.item, b.title or b.item] for a, b in both],
    )
    page.text(
        "These numbers show one run with one seed. Quality alone cannot show forgetting; "
        "what shows it here is that the model was made without the records, and the audit.",
        note=True,
    )
    page.heading("How to make it again")
    page.code(f"rescind demo --seed {result.facts['seed']}")
    page.facts(
        {
            "data digest": data["digest"],
            "model (saved: the one that forgot)": digest(erasure.after.now.state.public),
            **result.facts["versions"],
        }
    )
    write_atomically(out / "report.html", page.html().encode())


def say_quality(name: str, metrics: dict[str, float], note: str = "") -> None:
    """One line of the comparison."""
    more = f"   ({note})" if note else ""
    print(f"{name}  HR@20 {metrics['HR@20']:.4f}   NDCG@20 {metrics['NDCG@20']:.4f}{more}")


def closing(out: Path, erasure: Erasure) -> None:
    """Where things are, and what to try next."""
    print(f"\nWritten: {out}/report.html (open it in a browser), {out}/receipt.html, {out}/model/")
    command = "rescind" if which("rescind") else sys.argv[0]
    print("Next, try:")
    print(f"  {command} recommend {out} --user {erasure.user} -k 10")
    print(f"  {command} verify {out}/receipt.json")
    print(f"  {command} verify {out / ADDITIVE}/receipt.json --data {out / ADDITIVE}")
    print(f"  {command} forget {out} --withdraw {erasure.user} --audits none")
    print(f"  {command} table fedshare/table3")
