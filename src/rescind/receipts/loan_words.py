"""What a receipt says of an Unshare: the lent copy goes, and the model still learns on devices.

Sentences about an erasure would be false there: devices keep the records, and the model counts
them. So it is never "one that never had them", but one to which they were never lent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rescind.core.claims import RELEASE
from rescind.privacy.sealing import sealed

if TYPE_CHECKING:
    from rescind.receipts.receipt import Receipt

STILL = "Devices keep the records, and the model still learns from them there."
LEVELS = {
    "L0": "the lent copy is hidden and no longer used",
    "L1": "the lent copy is erased; it is not shown that its influence is gone from the model",
    "L2": "the influence of the lent copy is removed approximately: an audit found none, or all "
    "rounds that can still be repeated were trained again. Devices keep the records, and the model "
    "still learns from them there",
    "L3": "the influence of the lent copy is removed exactly: the model is one to which the "
    "records were never lent. Devices keep them, and it still learns from them there",
}
INFLUENCE = {
    "L0": "Not claimed: the lent copy is hidden and no longer used.",
    "L1": f"Not shown. {STILL}",
    "L2": f"The operator states: approximately. {STILL}",
    "L3": "The operator states: exactly. The model is one to which they were never lent. " + STILL,
}
BY_LEVEL = {
    "L0": "The lent copy is hidden and no longer used; nothing more is claimed.",
    "L1": "It is not shown that the influence of the lent copy is gone from the model.",
    "L2": "What the model learnt from the lent copy in rounds that cannot be repeated may be left.",
    "L3": "That the model is one to which they were never lent is what the operator states, from "
    "how it was made, not from a measurement.",
}
NO_REPEAT = "no round to repeat"
"""How a retraining ends of which no round could be run: in a stream, of an earlier block."""
DONE = {
    NO_REPEAT: "no round that can be repeated used it, so none was run, and the model is unchanged",
    "Retrain": "the model was trained again as if they had never been lent",
    "Subtract": "the sum that the model is made of is now as if they had never been lent",
    "Subtract, and retrain the softmax learner": "the sum is now as if they had never been lent, "
    "and the rest of the model was trained again so",
}
"""What was done to the model, by the name of the unlearner."""
SAY = {
    "that never saw them": "to which they were never lent",
    "that never saw the records": "to which the records were never lent",
    "that never had the records": "to which the records were never lent",
    "without the records": "without the lent copy",
    "the records left a trace": "the lent copy left a trace",
    "made with the records": "made with the lent copy",
    "the records had influence or made without them": "the lent copy had influence, or made "
    "without it",
    "the records were subtracted from it": "the lent copy no longer counts in it; what devices "
    "keep does",
    "The records' part was taken out of a sum; what is left is the sum of the others.": "The part "
    "of the lent copy was taken out of a sum; what devices keep stays in it.",
    "no run learns the rows of this and of earlier requests again": "no run lends the rows of this "
    "request again, or learns what earlier ones erased",
}
"""Words about an erasure, and what they are of a lent copy."""


def only_the_loan(receipt: Receipt) -> bool:
    """Return whether a request took the lent copy alone out of the model.

    A service takes the records out of its sum altogether: its receipts name a release.
    """
    return (
        receipt.asked.kind == "Unshare"
        and RELEASE not in receipt.claims
        and learns_on_devices(receipt.done.method)
    )


def learns_on_devices(method: Mapping[str, Any]) -> bool:
    """Return whether a model learns what is not lent. method: its settings"""
    return method.get("source") != "shared"


def of_the_loan(text: str) -> str:
    """Return a text about erased records as one about a lent copy."""
    for erased, lent in SAY.items():
        text = text.replace(erased, lent)
    return text


def same_model(receipt: Receipt, key: bytes) -> bool:
    """Return whether the model after is the one before, bit for bit.

    receipt: with exact numbers    key: the requester's, under which the model before is stated
    """
    before, after = receipt.done.model_before, receipt.done.model_after
    return bool(after) and before == sealed(after, key)
