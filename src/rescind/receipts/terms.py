"""What the words of a receipt mean, for a reader who trains no models."""

from __future__ import annotations

import re

TERMS = {
    "level": "What the operator states about forgetting, from L0 (hidden) to L3 (removed exactly).",
    "claimed by code": "Code from outside this program made the model again and says that nothing "
    "is left. Nobody vouches for it: it could keep the old model in a file.",
    "verdict": "What was measured. UNAUDITED: nothing was.",
    "retrained": "Models that were trained again without the records: what forgetting must reach.",
    "no-op": "A model that forgot nothing. A check that does not notice it shows nothing.",
    "margin": "The largest difference from retrained models that counts as none.",
    "95 % interval": "The values that chance could explain, with 95 % confidence.",
    "client round": "One device trained once.",
    "item table": "The numbers that the model has for each item. Every device gets them.",
    "user rows": "The numbers that the server keeps for each user.",
    "By lot": "An attack whose settings were drawn for this audit alone, so that nobody could "
    "prepare for it. The secret is what was drawn; its digest was written down before.",
    "Jaccard": "How much two lists have in common, from 0 to 1.",
    "NDCG": "How good recommendation lists are, from 0 to 1.",
    "digest": "A short number computed from a file or a list. Another content has another digest.",
    "sealed": "Encrypted, or computed under a key: only its holder can read or compare it.",
    "Subtract": "The records' part was taken out of a sum; what is left is the sum of the others.",
    "Retrain": "The model was trained again from the start, without the records.",
}
"""Words that stay, and what they mean."""


def explained(text: str) -> dict[str, str]:
    """Return the words that a page uses, each with its meaning. text: HTML"""
    words = re.sub(r"<[^>]+>", " ", text)
    return {word: meaning for word, meaning in TERMS.items() if word in words}
