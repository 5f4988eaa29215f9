"""A roster: strangers add it up without data; five fakes are found; honest changes pass."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from rescind.core.federation import Federation
from rescind.core.records import Erase, Event, Share, Unshare, Withdraw
from rescind.errors import ConfigError, DataError
from rescind.forgetting import roster as publishing
from rescind.forgetting.roster import Seeds, audit, lines_of, publish
from rescind.methods.additive.gram import Gram
from rescind.methods.additive.local_gram import LocalGram
from rescind.privacy import keys
from rescind.proof.log_folder import LINE, REVOKED, ROSTER, LogFolder, entry_of
from rescind.proof.roster import (
    Public,
    Stated,
    added_up,
    check,
    digest,
    history,
    own_line,
    split,
)
from rescind.receipts.log import key_of, open_log
from worlds import lendable, next_block, tiny_holdings

TRIALS = 12


def lending(method: Gram | None = None) -> Federation:
    fed = Federation.start(tiny_holdings(clients=9, items=14), method or Gram(), seed=2)
    own = lendable(fed.now.vault.holdings, 0, 2)
    return fed.apply(Share(own[torch.arange(len(own)) % 3 > 0])).run(1)


class Operator:
    """Whoever publishes: a log, seeds, and the lines made so far."""

    def __init__(self) -> None:
        self.log = open_log()
        self.seeds, self.known = Seeds.of(self.log), dict[str, bytes]()
        self.key = key_of(self.log)

    def publishes(self, fed: Federation) -> Public:
        public = publish(fed, self.log, keys.log_key(), self.seeds, self.known)
        self.known |= {digest(line): line for line in split(public.lines)}
        return public

    def states(self, public: Public, **changed: bytes) -> Public:
        """Publish other bytes and say so in the log: what a cunning operator does."""
        public = replace(public, **changed)
        stated = Stated.parse(public.stated)
        lines = len(split(public.lines))
        number = sum(entry[0] == ROSTER for entry in self.log.entries) + 1
        stated = replace(stated, sum=digest(public.total), lines=lines, number=number)
        public = replace(public, stated=stated.to_bytes())
        self.log.append([entry_of(ROSTER, public.stated)], keys.log_key())
        return public


@pytest.fixture
def operator() -> Operator:
    return Operator()


def follow(fed: Federation, event: Event) -> Federation:
    return fed.method.follow(fed, event)


def with_sum(fed: Federation, **own: torch.Tensor) -> Federation:
    """The same federation with another sum in use, and the weights of that sum."""
    state = fed.now.state
    mixed = {**state.own, **own}
    mixed["inverse"] = fed.method.server_solved(mixed, fed.world)
    public = fed.method.server_public(mixed, fed.world)
    return replace(fed, now=replace(fed.now, state=replace(state, own=mixed, public=public)))


def off_by_one(fed: Federation, trial: int) -> Federation:
    total = fed.now.state.own["gram/0000"].clone()
    total[trial * 7 % len(total)] += 1 if trial % 2 else -1
    return with_sum(fed, **{"gram/0000": total})


def test_strangers_add_up_an_honest_roster_without_data(operator: Operator) -> None:
    fed = lending()
    told = check(operator.publishes(fed), operator.key)
    assert told[-1] == "they add up to the published sum"
    parts = publishing.parts_of(fed)
    assert len(parts) == len(split(operator.publishes(fed).lines)) > 9
    assert audit(fed, operator.publishes(fed), operator.seeds) == [
        "the sum that the run uses is the published one",
        "the weights follow from it",
        "the names of its items are those that the log states",
    ]


def people(fed: Federation) -> list[int]:
    """Those who add something to the sum: one of the little world has nothing to train on."""
    return sorted({part.client for part in publishing.parts_of(fed)})


def fakes(fed: Federation, after: Federation, trial: int) -> dict[str, Federation]:
    """What a server uses that did not forget. after: the world without one person"""
    old, left = fed.now.state.own["gram/0000"], people(after)
    one = lendable(after.now.vault.holdings, left[trial % len(left)])[:1]
    less = follow(after, Erase(one))
    return {
        "person kept": with_sum(after, **{"gram/0000": old}),
        "record kept": with_sum(less, **{"gram/0000": after.now.state.own["gram/0000"]}),
        "one entry off by one": off_by_one(after, trial),
    }


def test_a_sum_that_did_not_forget_is_found_in_every_trial(operator: Operator) -> None:
    fed = lending()
    operator.publishes(fed)
    found: dict[str, int] = {}
    persons = people(fed)
    for trial, person in enumerate(persons):
        after = follow(fed, Withdraw(person))
        check(operator.publishes(after), operator.key)  # the control: the honest server passes
        for name, fake in fakes(fed, after, trial).items():
            public = operator.publishes(fake)
            with pytest.raises(DataError, match="do not add up"):
                check(public, operator.key)
            # A cunning server states what the lines give. Then whoever may rebuild finds it.
            cunning = operator.states(public, total=added_up(public.lines))
            check(cunning, operator.key)
            with pytest.raises(DataError, match="not the published one"):
                audit(fake, cunning, operator.seeds)
            found[name] = found.get(name, 0) + 1
        operator.publishes(fed)
    assert len(persons) == 8
    assert found == {"person kept": 8, "record kept": 8, "one entry off by one": 8}


def test_a_model_from_another_sum_is_found_by_whoever_may_rebuild(operator: Operator) -> None:
    fed = lending()
    persons = people(fed)
    for trial in range(TRIALS):
        left = follow(fed, Withdraw(persons[trial % len(persons)]))
        other = off_by_one(fed, trial) if trial % 2 else left
        state = replace(fed.now.state, public=other.now.state.public)
        fake = replace(fed, now=replace(fed.now, state=state))
        public = operator.publishes(fake)
        check(public, operator.key)  # a stranger cannot see it: the page says so
        with pytest.raises(DataError, match="not solved from the published sum"):
            audit(fake, public, operator.seeds)
        honest = operator.publishes(fed)
        with pytest.raises(DataError, match="weights are not those"):
            audit(fake, honest, operator.seeds)
        audit(fed, honest, operator.seeds)


def test_an_edited_roster_is_found_in_every_trial(operator: Operator) -> None:
    fed = lending()
    before = operator.publishes(fed)
    public = operator.publishes(follow(fed, Withdraw(4)))
    lines, gone = split(public.lines), set(split(before.lines)) - set(split(public.lines))
    for trial in range(TRIALS):
        n = trial % len(lines)
        changed = bytearray(lines[n])
        changed[(trial * 331) % len(changed)] ^= 1 + trial
        edits = {
            "never added": [*lines[:n], bytes(changed), *lines[n + 1 :]],
            "are missing": [*lines[:n], *lines[n + 1 :]],
            "twice": [*lines, lines[n]],
            "were revoked": [*lines, *gone],
        }
        for told, edited in edits.items():
            joined = b"".join(edited)
            with pytest.raises(DataError, match=told):  # also when the sum is changed with it
                check(operator.states(public, lines=joined, total=added_up(joined)), operator.key)
        with pytest.raises(DataError):
            check(replace(public, lines=b"".join(edits["never added"])), operator.key)
    check(operator.publishes(follow(fed, Withdraw(4))), operator.key)


def test_a_release_that_is_old_or_another_is_found(operator: Operator) -> None:
    fed = lending()
    old = operator.publishes(fed)
    new = operator.publishes(follow(fed, Withdraw(4)))
    with pytest.raises(DataError, match="not the newest"):
        check(replace(old, log=operator.log), operator.key)
    with pytest.raises(DataError, match="not the newest"):
        check(replace(new, stated=new.stated.replace(b'"lines": ', b'"lines": 1')), operator.key)
    with pytest.raises(DataError, match="rewritten"):
        check(replace(new, stated=new.stated + b" "), operator.key)
    with pytest.raises(DataError, match="not the sum that the release states"):
        check(replace(new, total=old.total), operator.key)


def test_what_each_event_does_to_the_roster(operator: Operator) -> None:
    fed = lending()
    operator.publishes(fed)

    def grew(fed: Federation) -> tuple[int, int]:
        start = len(operator.log.entries)
        check(operator.publishes(fed), operator.key)
        kinds = [entry[0] for entry in operator.log.entries[start:]]
        return kinds.count(LINE), kinds.count(REVOKED)

    assert grew(fed) == (0, 0)
    lent = fed.world.shared[fed.world.shared.client == 2]
    one = lent[:1]
    back = follow(fed, Unshare(one))
    assert grew(back) == (2, 2)  # lent part and kept part of one person
    assert grew(follow(back, Share(one))) == (2, 2)
    assert grew(follow(back, Erase(one)))[1] >= 1
    assert grew(fed)[0] >= 1
    assert grew(follow(fed, Withdraw(2))) == (0, 2)  # both parts of the leaver, no other line


@pytest.mark.parametrize(
    "method", [Gram(), Gram(cross=True), Gram(forgetting=0.5), Gram(min_count=2)]
)
def test_new_blocks_and_other_settings_add_up(method: Gram, operator: Operator) -> None:
    fed = lending(method)
    assert "they add up to the published sum" in check(operator.publishes(fed), operator.key)
    later = follow(fed, next_block(9, 14)).run(1)
    public = operator.publishes(later)
    check(public, operator.key)
    audit(later, public, operator.seeds)
    gone = follow(later, Withdraw(3))
    check(operator.publishes(gone), operator.key)
    if method.min_count:
        owners = gone.now.state.own["owners"].clone()
        owners[3] += 1
        with pytest.raises(DataError, match="do not add up"):
            check(operator.publishes(with_sum(gone, owners=owners)), operator.key)


def test_a_leaver_sees_their_line_revoked_and_its_seed_is_gone(operator: Operator) -> None:
    fed = lending()
    operator.publishes(fed)
    mine = lines_of(fed, 4, operator.seeds)
    assert [own_line(one) for one in mine] == [one["line"] for one in mine]
    for one in mine:
        assert one["ids"] == [fed.labels.item_id(item) for item in one["items"]]
    assert all("counted since" in history(operator.log, one["line"]) for one in mine)
    other = {**mine[0], "items": mine[0]["items"][1:]}
    assert own_line(other) != mine[0]["line"]
    operator.publishes(follow(fed, Withdraw(4)))
    for one in mine:
        said = history(operator.log, one["line"])
        (index,) = re.findall(r"revoked as entry \d+ \(index (\d+)\)", said)
        assert f"revoked as entry {int(index) + 1} " in said, "as rescind verify counts"
        assert operator.log.entries[int(index)][1:].hex() == one["line"], "as rescind log list does"
    kept = operator.seeds.path.read_text()
    assert not any(one["seed"] in kept for one in mine)
    assert operator.seeds.path.stat().st_mode & 0o077 == 0
    assert history(operator.log, "0" * 64) == "the log never added this line"


def test_killed_between_two_writes_the_next_publish_goes_on(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = lending()
    operator.publishes(fed)
    after = follow(fed, Withdraw(4))

    def killed(self: LogFolder, *_: object) -> list[int]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LogFolder, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            operator.publishes(after)
    again = Operator()
    assert again.seeds.lines.keys() >= operator.seeds.lines.keys()
    check(again.publishes(after), again.key)


def test_other_methods_have_no_roster(operator: Operator) -> None:
    with pytest.raises(ConfigError, match="Gram"):
        operator.publishes(lending(LocalGram()))  # type: ignore[arg-type]
