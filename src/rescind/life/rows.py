"""The rows of the table: methods of this package that take part, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rescind.life.entry import Entry, Setting
from rescind.life.federated import (
    Additive,
    Anew,
    Continual,
    Exact,
    KeepsTeacher,
    NoOp,
    ScoreShift,
)

ROUNDS = 20
"""Rounds of a model that is trained from the start in each block."""
FEW_ROUNDS = 12
"""The same of methods that log single updates."""
MANY = 2000
LARGE = 8000
"""Items above which a sum over all pairs of items is too large: neighbours only then."""
BLOCK_ROUNDS = 8
"""Rounds per block of a model that is carried on."""
Build = Callable[[Setting, int], Entry]


@dataclass(frozen=True)
class Row:
    """A method of the table."""

    name: str
    build: Build
    says: str
    spare: Build | None = None
    """How the auditor makes lives under other seeds, where the method's own way is slower: it must
    learn the same. Lives with the seed of the run are always made by `build`."""


def _gram(setting: Setting, seed: int) -> Entry:
    from rescind.methods.additive.gram import Gram
    from rescind.methods.additive.local_gram import LocalGram

    return Additive(setting, seed, Gram() if setting.items <= LARGE else LocalGram(), 1)


def _seq_gram(setting: Setting, seed: int) -> Entry:
    from rescind.methods.additive.local_seq_gram import LocalSeqGram
    from rescind.methods.additive.seq_gram import SeqGram

    return Additive(setting, seed, SeqGram() if setting.items <= LARGE else LocalSeqGram(), 1)


def _fedavg(kind: type[Anew]) -> Build:
    def build(setting: Setting, seed: int) -> Entry:
        from rescind.methods.baselines.fedavg import FedAvg

        return kind(setting, seed, FedAvg(), ROUNDS)

    return build


def _fedshare(setting: Setting, seed: int) -> Entry:
    from rescind.methods.sharing.fedshare import FedShare

    return Exact(setting, seed, FedShare(snapshots=0), ROUNDS)


def _fedshare_unlearn(setting: Setting, seed: int) -> Entry:
    from rescind.methods.sharing.fedshare import FedShare
    from rescind.methods.sharing.fedshare_unlearn import FedShareUnlearn

    learner = FedShare(keep_sums=True)
    return Anew(setting, seed, learner, ROUNDS, FedShareUnlearn())


def _finetuned(setting: Setting, seed: int) -> Entry:
    from rescind.methods.baselines.fedavg import FedAvg
    from rescind.methods.unlearning.finetune import FineTuneUnlearn

    return Anew(setting, seed, FedAvg(), ROUNDS, FineTuneUnlearn())


def _logged(setting: Setting) -> dict[str, Any]:
    """Return settings of methods that log single updates, which takes time and memory."""
    return {"clients_per_round": 64 if setting.users < MANY else 128, "snapshots": 0}


def _fru(setting: Setting, seed: int) -> Entry:
    from rescind.methods.unlearning.fru import FRU

    return Anew(setting, seed, FRU(**_logged(setting)), FEW_ROUNDS)


def _federaser(setting: Setting, seed: int) -> Entry:
    from rescind.methods.unlearning.federaser import FedEraser

    return Anew(setting, seed, FedEraser(**_logged(setting)), FEW_ROUNDS)


def _unlogged(setting: Setting, seed: int) -> Entry:
    """Return FedShare, which FRU and FedEraser learn as, without their logs."""
    from rescind.methods.sharing.fedshare import FedShare

    return Anew(setting, seed, FedShare(**_logged(setting)), FEW_ROUNDS)


def _ft(setting: Setting, seed: int) -> Entry:
    from rescind.methods.continual.finetune import FineTune

    return Continual(setting, seed, FineTune(), BLOCK_ROUNDS)


def _f3crec(kind: type[Continual]) -> Build:
    def build(setting: Setting, seed: int) -> Entry:
        from rescind.methods.continual.f3crec import F3CRec

        return kind(setting, seed, F3CRec(), BLOCK_ROUNDS)

    return build


ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row("Gram", _gram, "a sum over people; subtracts"),
        Row("SeqGram", _seq_gram, "a sum over ordered pairs; subtracts"),
        Row("FedShare + unlearner", _fedshare_unlearn, "learns anew; Algorithm 2 of its paper"),
        Row("FedShare + retraining", _fedshare, "learns anew; trains again"),
        Row("FedAvg + retraining", _fedavg(Exact), "learns anew; trains again"),
        Row("FT", _ft, "carries on; goes through all blocks again"),
        Row("F3CRec, teacher kept", _f3crec(KeepsTeacher), "carries on; forgets in the model only"),
        Row("F3CRec, teacher purged", _f3crec(Continual), "carries on; goes through all blocks"),
        Row("FRU", _fru, "learns anew; replays with the logs of devices", spare=_unlogged),
        Row(
            "FedEraser",
            _federaser,
            "learns anew; replays with the log of the server",
            spare=_unlogged,
        ),
        Row("FineTune", _finetuned, "FedAvg; ten more rounds without the records"),
        Row("no-op", _fedavg(NoOp), "FedAvg; does nothing: must fail"),
        Row("score shift", _fedavg(ScoreShift), "FedAvg; shifts all scores: must fail"),
    )
}
