"""A page says who solved the release of this browser again, if the signature fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from browsing import Town
from rescind.cli.witness import open_witness
from rescind.ledger.rebuilding import Rebuilding
from rescind.service.callers import make_token
from rescind.service.chores import make_roster

expect = pytest.importorskip("playwright.sync_api", reason="make test-browser installs it").expect
pytestmark = pytest.mark.browser


def test_the_page_says_who_rebuilt_the_release(visit, place: Town, tmp_path: Path) -> None:
    service = place.app.state.service
    witness = open_witness(tmp_path, "auditor", [service.log.key])
    service.log.witnesses.admit(witness.key, None)
    token = make_token(place.ledger, "rebuild", "auditor", 1)
    place.release()
    make_roster(service)
    page = visit().join()
    says = page.locator("[data-rebuilt]")
    expect(says).to_contain_text("Nobody but the service has shown")
    Rebuilding(place.origin, service.log.key, witness, tmp_path, token).once()
    page.reload()
    expect(says).to_contain_text("with the same weights: signed by auditor on today")

    def forged(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace("every byte", "every bit."))

    page.route("**/v1/release", forged)
    page.reload()
    expect(says).to_contain_text("does not verify. The signature of auditor does not fit")
