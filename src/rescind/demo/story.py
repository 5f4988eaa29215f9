"""The main job in one command: lend, learn, recommend, take back, audit, receipt."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from shlex import quote
from shutil import which

import torch

from rescind.audits.battery import NO_OP, RETRAIN, Report
from rescind.audits.finding import VERDICTS
from rescind.core.federation import Federation
from rescind.core.files import write_atomically
from rescind.core.params import digest
from rescind.core.records import Erase, Records, Share
from rescind.data import Dataset
from rescind.data.simulated_lending import ALL, NOTHING, PART, draw_groups, draw_regret
from rescind.demo import page as demo_page
from rescind.demo.page import Erasure, Person, Subtraction
from rescind.errors import DataError
from rescind.experiments.learning_run import Result, run_cell
from rescind.experiments.prepared_data import prepare
from rescind.experiments.recipe import Cell, DataSettings, RunSettings, SharingSettings
from rescind.forgetting.forget import forget
from rescind.methods.additive.gram import Gram
from rescind.methods.baselines.popularity import Popularity
from rescind.methods.sharing.fedshare import FedShare
from rescind.privacy.keys import private_folder
from rescind.receipts.claims import AFTER, check, sum_digest
from rescind.receipts.log import log_if_possible
from rescind.receipts.page import page as page_of
from rescind.receipts.receipt import Issued, write
from rescind.reporting import charts
from rescind.reporting.progress import RoundBar
from rescind.storage.events import event_text
from rescind.storage.federations import save_federation
from rescind.storage.run_folder import write_facts

GROUPS = {ALL: "lend everything", PART: "lend a part", NOTHING: "lend nothing"}
ADDITIVE = "additive"
"""Folder of the model that forgets by subtraction, next to the report."""
REGRET = 0.3
"""Fraction of lenders who take their loans back, as in FedShare V-C. The records of one person are
too few for an audit."""


def play(out: Path, rounds: int, seed: int, synthetic: bool, picture: Path | None) -> None:
    """Run the demonstration. Print what was done, where it is, and what to try next."""
    private_folder()  # a home: this is about a person's request
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
    print("2. People lend; devices train; the server sees what is lent, and sums of the rest")
    with RoundBar("   training", rounds) as bar:
        result = run_cell(cell, out, watch=(bar,), dataset=dataset)
    lending = groups_table(result.fed)
    for name, people, records in lending:
        print(f"   {people:4d} people {name}: {records} records")
    floor = Federation.start(dataset, Popularity(), seed).run(1).evaluate()
    print_quality("   popularity   ", floor)
    print_quality("   federated    ", result.metrics)
    start = time.perf_counter()
    additive = Federation.start(dataset, Gram(), seed).apply(Share(result.fed.world.shared)).run(1)
    seconds = time.perf_counter() - start
    note = f"one round, {seconds:.1f} s, no gradient"
    print_quality("   additive     ", additive.evaluate(), note)
    erasure = take_back(result.fed, additive, result.facts["data"]["digest"], out / ADDITIVE)
    quality = erasure.after.evaluate()
    print_quality("   after erasure", quality)
    drawn = demo_page.panels(result, floor, quality, erasure)
    finish(out, result, floor, quality, erasure)
    report = demo_page.page(result, floor, quality, erasure, lending, drawn)
    write_atomically(out / "report.html", report.encode())
    for path in filter(None, (out / "demo.png", picture)):
        charts.png(demo_page.draw(drawn), path)
    closing(out, erasure)


def obtain(synthetic: bool) -> Dataset:
    """Return ML-100K, or synthetic data if it cannot be obtained."""
    if not synthetic:
        try:
            return prepare(DataSettings(name="ml-100k"))
        except DataError as error:
            print(f"   ML-100K cannot be obtained here: {error}")
            print("   Using built-in SYNTHETIC data; its numbers mean nothing outside this demo.")
    return prepare(DataSettings(name="synthetic"))


def groups_table(fed: Federation) -> list[tuple[str, int, int]]:
    """Return (group, number of people, number of lent records)."""
    groups = draw_groups(fed.world.sizes.clients, fed.clock)
    lent = torch.bincount(fed.world.shared.client, minlength=fed.world.sizes.clients)
    people = {name: groups == g for g, name in GROUPS.items()}
    return [(name, int(mine.sum()), int(lent[mine].sum())) for name, mine in people.items()]


def subtract(
    additive: Federation, lent: Records, user: str, data: str, folder: Path
) -> Subtraction:
    """Subtract the loans from the additive learner's sum, with a check that can be repeated."""
    mine = lent[lent.client == additive.labels.client(user, additive.world.sizes.clients)]
    additive.method.unlearn(additive, Erase(mine))  # warm up: compiles what is timed next
    start = time.process_time()
    additive.method.unlearn(additive, Erase(mine))
    alone = time.process_time() - start
    start = time.process_time()
    after, evidence = forget(additive, Erase(lent), audits="none", data=data)
    together = time.process_time() - start
    save_federation(after, folder / "model")
    (folder / "receipt.key").unlink(missing_ok=True)  # of an earlier run
    write(Issued(evidence.receipt, evidence.key), folder / "receipt.json")
    log_if_possible(folder / "receipt.json")
    return Subtraction(
        alone,
        together,
        sum_digest(additive.now.state.own),
        evidence.exact.claims[AFTER],
        after.method.rebuilt(after),
        check(evidence.exact, after, "hand"),
    )


def print_subtraction(found: Subtraction, user: str, people: int) -> None:
    """Print the time, the three digests, and whether they agree."""
    print(
        f"   additive model: user {user} subtracted in {1000 * found.alone:.0f} ms, "
        f"all {people} people in {1000 * found.together:.0f} ms of CPU"
    )
    sums = {
        "before": found.before,
        "after, by subtraction": found.after,
        "of the remaining data": found.recomputed,
    }
    for name, value in sums.items():
        print(f"     sum {name:24} {value.removeprefix('sha256:')[:16]}")
    print(f"   summed again here: {found.says}")


def typical(fed: Federation, lent: Records) -> Person:
    """Return the person with the median number of records to learn, of those who take back a part.

    People with many records get rare items, people with few get popular ones.

    lent: the records that are taken back
    """
    clients = fed.world.sizes.clients
    lends = torch.bincount(lent.client, minlength=clients)
    holdings = fed.now.vault.holdings
    held = torch.bincount(holdings.records.client.cpu(), minlength=clients)
    learnt = holdings.lot("own")[1].cpu()
    fit = torch.nonzero((draw_groups(clients, fed.clock) == PART) & (lends > 0)).flatten()
    if not len(fit):  # small data: none of them lends a part
        fit = torch.nonzero(lends > 0).flatten()
    order = fit[torch.argsort(learnt[fit], stable=True)]
    client = int(order[(len(order) - 1) // 2])
    user = fed.labels.user_id(client)
    mine, learns, lends_now = (int(of[client]) for of in (held, learnt, lends))
    return Person(user, mine, learns, lends_now, len(order))


def take_back(fed: Federation, additive: Federation, data: str, folder: Path) -> Erasure:
    """Recommend to one person before and after they and others erase what they lent.

    folder: for the additive learner after forgetting, and its receipt
    """
    lent = draw_regret(fed.world.shared, fed.clock, REGRET)
    people, person = len(torch.unique(lent.client)), typical(fed, lent)
    user = person.user
    shown = fed.recommend(user, 10)
    print(f"3. User {user} gets recommendations")
    print(f"   {person.description}")
    print("   items with the highest scores in the federated model, without the user's own:")
    for place, item in enumerate(shown[:5], 1):
        print(f"   {place}. {item.title or 'item ' + item.item}")
    print(f"4. User {user} and {people - 1} others erase the {len(lent):,} records they lent")
    subtraction = subtract(additive, lent, user, data, folder)
    print_subtraction(subtraction, user, people)
    print("   federated model: cannot subtract, so it runs the same rounds without them")
    then = "auditing (trains models to compare)"
    with RoundBar("   training again", fed.now.state.round, after=then) as bar:
        watched = replace(fed, watch=(bar,))
        after, evidence = forget(watched, Erase(lent), data=data, progress=print_retrains)
    after = replace(after, watch=())
    if evidence.report is not None:
        print_verdict(evidence.report)
    later = after.recommend(user, 10)
    return Erasure(person, people, subtraction, lent, evidence, fed, after, shown, later)


def print_verdict(report: Report) -> None:
    """Print the verdict and the controls; if they leave it open, what the answer rests on."""
    print(f"   verdict on the new model: {report.verdict}")
    for role, verdict in report.subjects.items():
        if role in (NO_OP, RETRAIN):
            print(f"   control, {role}: {verdict}")
    if report.verdict in ("INCONCLUSIVE", "VOID"):
        why = f" {report.why[0].upper()}{report.why[1:]}." if report.why else ""
        print(f"   {VERDICTS[report.verdict]}{why}")
        print("   The answer is exact all the same: the rounds were run again without the records.")


def print_retrains(finished: int, total: int) -> None:
    """Print that the audit starts."""
    if finished == 0:
        print(f"5. Audit: {total} models are trained without the records, to compare with")


def finish(
    out: Path, result: Result, floor: dict[str, float], after: dict[str, float], erasure: Erasure
) -> None:
    """Replace the model by the one after forgetting; write receipt and run.json."""
    save_federation(erasure.after, out / "model")
    evidence = erasure.evidence
    (out / "receipt.key").unlink(missing_ok=True)  # of an earlier run
    write(Issued(evidence.receipt, evidence.key), out / "receipt.json")
    log_if_possible(out / "receipt.json")
    asked = event_text(Erase(erasure.lent), erasure.before.labels)
    write_atomically(out / "request.json", asked.encode(), private=True)
    findings = evidence.report.findings if evidence.report else None
    html = page_of(evidence.receipt, findings, key=evidence.key)
    write_atomically(out / "receipt.html", html.encode())
    (out / "receipt.html").chmod(0o600)  # it has the exact numbers
    demo = {
        "popularity": floor,
        "after_erasure": after,
        "erased_records": len(erasure.lent),
        "verdict": evidence.receipt.verdict,
        "mean_score_of_erased": erasure.means(),
    }
    model = {"public": digest(erasure.after.now.state.public)}
    write_facts(out, {**result.facts, "model": model, "demo": demo})


def print_quality(name: str, metrics: dict[str, float], note: str = "") -> None:
    """Print one line of the comparison."""
    more = f"   ({note})" if note else ""
    print(f"{name}  HR@20 {metrics['HR@20']:.4f}   NDCG@20 {metrics['NDCG@20']:.4f}{more}")


def closing(out: Path, erasure: Erasure) -> None:
    """Print where the results are, and what to try next."""
    print(f"\nWritten: {out}/report.html (open it in a browser), {out}/receipt.html, {out}/model/")
    command = "rescind" if which("rescind") else sys.argv[0]
    print("Next, try (forget changes the run that it is given, so it gets a copy):")
    for line in to_try(out, erasure.person.user, command):
        print(f"  {line}")


def to_try(out: Path, user: str, command: str) -> list[str]:
    """Return commands that can be given in this order, and again: none takes the report away.

    `forget` empties the run that it is given, so it gets a copy; a copy of an earlier demo may be
    of another user, and is left alone.
    """
    run, additive = quote(str(out)), quote(str(out / ADDITIVE))
    names = (f"{out}-copy-{number}" for number in count(1))
    copy = quote(next(name for name in names if not Path(name).exists()))
    return [
        f"{command} recommend {run} --user {user} -k 10",
        f"{command} verify {run}/receipt.json --proof {run}/receipt.tlog-proof",
        f"{command} verify {run}/receipt.json --event {run}/request.json "
        f"--event-key {run}/receipt.key",
        f"{command} verify {additive}/receipt.json --data {additive}",
        f"{command} table fedshare/table3",
        f"test -d {copy} || cp -r {run} {copy}",
        f"{command} forget {copy} --user {user}",
    ]
