"""`rescind release`: publish the current weights of an additive learner."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument


def command(run: Annotated[Path, Argument(help="The folder of a finished run of Gram.")]) -> None:
    """Make the next release of a run now, independent of its schedule.

    Devices receive the new weights. With noise, the release counts towards epsilon.
    """
    from rescind.storage.run_folder import check_finished, read_facts, write_facts

    check_finished(run)
    from rescind.storage.federations import load_federation, save_federation

    facts = read_facts(run) or {}
    fed = load_federation(run / "model")
    fed = fed.method.publish(fed)
    save_federation(fed, run / "model")
    release = fed.method.published(fed)
    assert release is not None
    privacy = {**facts.get("privacy", {}), **fed.method.promise(fed)}
    write_facts(run, {**facts, "published": release, "privacy": privacy})
    typer.echo(f"release {release['releases']} of {run}: {release['what']}")
    if "epsilon" in release:
        spent = f"{release['epsilon']:.4g} at delta {release['delta']:g}"
        typer.echo(f"epsilon of all releases: {spent}")
