"""A made world of a few people, and the story of its life."""

from __future__ import annotations

import pytest

from rescind.data import Dataset, load
from rescind.life.authors import write_story
from rescind.life.story import Story

BLOCKS = 4


@pytest.fixture(scope="session")
def people() -> Dataset:
    data = load("synthetic", users=120, items=80, interactions=4000)
    assert isinstance(data, Dataset)
    return data


@pytest.fixture(scope="session")
def story(people: Dataset) -> Story:
    return write_story(people, 0, BLOCKS)
