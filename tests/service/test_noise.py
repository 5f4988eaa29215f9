"""What people are told about noise on releases, and when it ends."""

from __future__ import annotations

from pathlib import Path

from doors import opened
from fabricated import made
from rescind.ledger.options import Options


def test_epsilon_stands_on_the_page_and_releases_stop(tmp_path: Path) -> None:
    options = Options(people=2, noise=4.0, noise_releases=1, noise_changes=2)
    with opened(tmp_path / "state", options) as house:
        person, operator = house.person((1, 2, 3, 4, 5)), house.operator()
        noise = person.get("/v1/release").json()["noise"]
        assert (noise["left"], noise["releases"], noise["changes"]) == (1, 1, 2)
        assert noise["epsilon"] > 0
        said = person.get("/v1/me").json()["service"]["said"]
        assert any(f"epsilon {noise['epsilon']:.2f}" in sentence for sentence in said)
        assert f"epsilon {noise['epsilon']:.2f}" in house.caller().get("/").text
        job = made(house.ledger, [person.id])
        refused = operator.post("/v1/operator/serving", {"generation": job})
        assert refused.status_code == 400
        assert "epsilon would not hold" in refused.json()["detail"]
        assert house.release(operator).status_code == 202
        told = person.post("/v1/me/requests", {"kind": "unshare", "items": ["item-3"]}).json()
        assert "budget of this service is spent" in told["processing_details"]
        spent = operator.post("/v1/operator/releases", {})
        assert spent.status_code == 400
        assert "budget is spent" in spent.json()["detail"]
        assert person.get("/v1/release").json()["noise"]["left"] == 0
