"""`rescind release`: publish the current weights of an additive learner."""

from __future__ import annotations

import typer

from rescind.cli.options import Run


def command(run: Run) -> None:
    """Make the next release of a run now, whatever release_every says.

    Devices receive the new weights. With fresh noise, the release counts towards epsilon; with a
    schedule (releases = T), it is one of the T that epsilon states.

    Example: rescind release runs/mine
    """
    from rescind.storage.run_folder import check_finished, read_facts, working_on, write_facts

    check_finished(run)
    from rescind.core.params import digest
    from rescind.storage.federations import load_federation, save_federation

    with working_on(run):
        check_finished(run)
        facts = read_facts(run) or {}
        fed = load_federation(run / "model")
        fed = fed.method.publish(fed)
        save_federation(fed, run / "model")
        release = fed.method.published(fed)
        assert release is not None
        privacy = {**facts.get("privacy", {}), **fed.method.promise(fed)}
        model = {**facts.get("model", {}), "public": digest(fed.now.state.public)}
        write_facts(run, {**facts, "published": release, "privacy": privacy, "model": model})
    typer.echo(f"release {release['releases']} of {run}: {release['what']}")
    if "epsilon" in release:
        spent = f"{release['epsilon']:.4g} at delta {release['delta']:g}"
        typer.echo(f"epsilon of all releases: {spent}")
