"""`rescind release`: publish what an additive learner has learnt and forgotten since."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run of Gram.")],
) -> None:
    """Make the next release of a run now, whatever its schedule says: for releases at given times.

    Devices are sent the new weights; with noise, the new release counts towards epsilon.
    """
    from rescind.errors import DataError
    from rescind.experiment import read_facts, write_facts
    from rescind.releases import promise, published, release_now
    from rescind.storage import load_federation, save_federation

    facts = read_facts(run)
    if facts is None or not (run / "model").is_dir():
        raise DataError(f"{run} holds no finished run. Give the folder of one, such as runs/demo.")
    fed = release_now(load_federation(run / "model"))
    save_federation(fed, run / "model")
    said = published(fed)
    assert said is not None
    write_facts(
        run, {**facts, "published": said, "privacy": {**facts.get("privacy", {}), **promise(fed)}}
    )
    typer.echo(f"release {said['releases']} of {run}: {said['what']}")
    if "epsilon" in said:
        typer.echo(f"epsilon of all releases: {said['epsilon']:.4g} at delta {said['delta']:g}")
