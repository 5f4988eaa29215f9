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
    from rescind.storage.run_folder import check_finished

    check_finished(run)
    from rescind.storage.federations import load_federation, save_federation
    from rescind.storage.run_folder import read_facts, write_facts

    facts = read_facts(run) or {}
    fed = load_federation(run / "model")
    fed = fed.method.publish(fed)
    save_federation(fed, run / "model")
    said = fed.method.published(fed)
    assert said is not None
    write_facts(
        run,
        {
            **facts,
            "published": said,
            "privacy": {**facts.get("privacy", {}), **fed.method.promise(fed)},
        },
    )
    typer.echo(f"release {said['releases']} of {run}: {said['what']}")
    if "epsilon" in said:
        typer.echo(f"epsilon of all releases: {said['epsilon']:.4g} at delta {said['delta']:g}")
