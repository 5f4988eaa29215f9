"""One person of a batch checks her own part of its receipt, and learns nothing of the others."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from rescind.audits.finding import Finding
from rescind.core.labels import Labels
from rescind.core.records import Erase, EraseEdges, Records, Unshare, Withdraw
from rescind.errors import ConsentError, DataError
from rescind.receipts import receipt
from rescind.receipts.parts import PEOPLE, covers_names, proof_of, proof_text, proofs, read_proof
from rescind.receipts.receipt import Done
from rescind.requests.part_names import file_names

PEOPLE_IN_BATCH = 170


def batch(people: int = PEOPLE_IN_BATCH, of: type = Erase):
    client = torch.arange(people).repeat_interleave(3) * 2 + 5
    return of(Records.of(client.flip(0), torch.arange(3 * people) % 40))


def issued(event, labels=None) -> receipt.Issued:
    done = Done(
        method={"name": "FedAvg"}, unlearning="Retrain", level="L3", world_before="a",
        world_after="b", model_before="c", model_after="d", rounds=1, client_rounds=1, online={},
        seconds=0.1,
    )  # fmt: skip
    return receipt.issue(event, done, [], [Finding("audit", "UNAUDITED")], records=3, labels=labels)


@pytest.mark.parametrize("people", [1, 2, 3, PEOPLE_IN_BATCH])
@pytest.mark.parametrize("of", [Erase, Unshare, EraseEdges])
def test_everybody_of_a_batch_can_verify_her_part(people, of):
    event = batch(people, of)
    made = issued(event)
    found = dict(proofs(event, made.key))
    assert len(found) == people
    assert all(proof.fits(made.receipt.claims) for proof in found.values())
    for client, proof in found.items():
        assert set(proof.part.records.client.tolist()) == {client}
        assert len(proof.part.records) == 3


def test_a_part_covers_the_names_of_its_user_and_items(tmp_path):
    event = batch()
    labels = Labels(tuple(f"c{n}" for n in range(400)), tuple(f"p{n}" for n in range(60)))
    made = issued(event, labels)
    mine = proof_of(event, made.key, 5, labels)
    text = proof_text(mine, "c5", labels)
    user, read = read_proof(text)
    assert (user, read.fits(made.receipt.claims)) == ("c5", True)
    for old, new in (('"c5"', '"c6"'), ('"p', '"q')):
        _, wrong = read_proof(text.replace(old, new))
        assert not wrong.fits(made.receipt.claims), new
    with pytest.raises(DataError, match="two users"):
        read_proof(text.replace('"user": "c5"', '"user": "c6"', 1))
    old = issued(event)  # without names, as before
    assert not covers_names(old.receipt.claims)
    _, plain = read_proof(proof_text(proof_of(event, old.key, 5), "c5", labels))
    assert plain.fits(old.receipt.claims)


def test_who_leaves_has_a_proof_too():
    made = issued(Withdraw(7))
    assert proof_of(Withdraw(7), made.key, 7).fits(made.receipt.claims)
    assert not proof_of(Withdraw(8), made.key, 8).fits(made.receipt.claims)


def test_a_proof_of_anything_else_does_not_fit():
    event = batch()
    made, other = issued(event), issued(event)
    mine, hers = proof_of(event, made.key, 5), proof_of(event, made.key, 7)
    more = Erase(mine.part.records + Records.of([5], [39]))
    fewer = Erase(mine.part.records[:2])
    for wrong in (
        replace(mine, part=more), replace(mine, part=fewer), replace(mine, part=hers.part),
        replace(mine, key=hers.key), replace(mine, way=hers.way), replace(mine, way=mine.way[1:]),
        replace(mine, part=Unshare(mine.part.records)),
    ):  # fmt: skip
        assert not wrong.fits(made.receipt.claims)
    assert not mine.fits(other.receipt.claims), "another receipt about the same people"
    with pytest.raises(ConsentError, match="not part of this request"):
        proof_of(event, made.key, 6)


def test_a_proof_opens_nothing_of_the_others():
    event = batch()
    made = issued(event)
    mine = proof_of(event, made.key, 5)
    with pytest.raises(DataError, match="does not open"):
        receipt.opened(made.receipt, mine.key)
    hers = proof_of(event, made.key, 7)
    guess = replace(hers, key=mine.key)  # whoever guesses her records right lacks her key
    assert not guess.fits(made.receipt.claims)
    assert len(mine.way) <= 8, "eight digests for 170 people"


def test_the_root_of_one_is_not_told_from_the_root_of_many():
    one, many = (issued(batch(n)).receipt.claims[PEOPLE] for n in (1, PEOPLE_IN_BATCH))
    assert len(one) == len(many)


def test_a_proof_is_the_same_after_json():
    event = batch()
    made = issued(event)
    text = proof_text(proof_of(event, made.key, 9), "user nine")
    user, proof = read_proof(text)
    assert user == "user nine"
    assert proof.fits(made.receipt.claims)
    table = json.loads(text)
    for damaged in (
        "", "[]", json.dumps({**table, "key": "00"}), json.dumps({**table, "way": [["up", "aa"]]}),
        json.dumps({**table, "request": {}}),
    ):  # fmt: skip
        with pytest.raises(DataError, match="not a part of a request"):
            read_proof(damaged)


def test_names_of_files_are_those_of_one_user_each():
    assert file_names(["7", "anna-b", "Anna"]) == ["7", "anna-b", "Anna"], "control: as they are"
    assert file_names(["a#2", "a", "A"]) == ["a%232", "a", "A#2"]
    long = file_names(["n" * 300, "n" * 301])
    assert long == ["n" * 200, "n" * 200 + "#2"]
