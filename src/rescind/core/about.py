"""What is publicly known about items: words such as genres, and years. No person's data."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from rescind.core.labels import Labels
from rescind.core.params import Params

WORDS, YEAR = "words", "year"
_YEAR = re.compile(r"\((\d{4})\)\s*$")


def about_items(labels: Labels) -> Params:
    """Return `words` [I, W] bool and `year` [I] int64, 0 if unknown; empty without genres.

    Words are the genres, separated by "|"; the year is at the end of a title: "Heat (1995)".
    """
    if not any(labels.genres):
        return {}
    each = [[word for word in text.split("|") if word] for text in labels.genres]
    place = {word: at for at, word in enumerate(sorted({w for words in each for w in words}))}
    table = torch.zeros(len(each), len(place), dtype=torch.bool)
    for item, words in enumerate(each):
        table[item, [place[word] for word in words]] = True
    found = (_YEAR.search(labels.title(item)) for item in range(len(each)))
    years = torch.tensor([int(year[1]) if year else 0 for year in found])
    return {WORDS: table, YEAR: years}


def alike(about: Params, items: int, years_apart: float) -> Tensor:
    """Return how alike items are: cosine of their words times exp(-|years| / years_apart). [I, I]

    Zero for items of which nothing is known; without a year on one side, words alone count.
    """
    words = about[WORDS].float()
    words = torch.nn.functional.normalize(words[:items], dim=1)
    words = torch.nn.functional.pad(words, (0, 0, 0, items - len(words)))
    year = torch.nn.functional.pad(about[YEAR][:items], (0, items - len(about[YEAR][:items])))
    apart = (year[:, None] - year[None]).abs().float()
    apart[(year[:, None] == 0) | (year[None] == 0)] = 0.0
    return (words @ words.T).mul_(torch.exp(-apart / years_apart))
