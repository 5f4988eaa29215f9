"""A model that is not the one of its last receipt is noticed before anybody relies on it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from command_line import rescind
from requesting import Shop, unpacked


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop.opened(tmp_path / "shop")
    shop.learn("other")
    return shop


def test_a_run_that_fits_its_receipt_is_valid(shop: Shop, tmp_path: Path) -> None:
    done = shop.ask("leave", "c7")
    papers = unpacked(done.id, tmp_path / "papers")
    for words in ((), (papers / "receipt.json",)):
        assert rescind("verify", *map(str, words), "--run", str(shop.run()))[0] == 0
    assert rescind("recommend", str(shop.run()), "--user", "c3")[0] == 0


def test_a_model_beside_another_ones_receipt_is_refused(shop: Shop) -> None:
    shutil.copytree(shop.run() / "model", shop.folder / "before")
    shop.ask("leave", "c7")
    shutil.rmtree(shop.run() / "model")
    shutil.copytree(shop.folder / "before", shop.run() / "model")
    assert rescind("verify", "--run", str(shop.run()))[0] == 1
    for words in (("recommend", str(shop.run()), "--user", "c3"), ("forget", "--user", "c5")):
        assert rescind(*words)[0] == 2
    assert rescind("recommend", str(shop.run("other")), "--user", "c3")[0] == 0, "the control"


def test_only_the_newest_receipt_is_about_a_run(shop: Shop, tmp_path: Path) -> None:
    old, new = (shop.ask("leave", user).id for user in ("c7", "c8"))
    for name, code in ((old, 1), (new, 0)):
        papers = unpacked(name, tmp_path / name)
        receipt = str(papers / "receipt.json")
        assert rescind("verify", receipt, "--run", str(shop.run()))[0] == code
        assert rescind("verify", receipt)[0] == 0, "by itself it is valid"
