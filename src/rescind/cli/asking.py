"""Ask before something that cannot be undone."""

from __future__ import annotations

import typer


def ask_to_go_on(kept: str) -> None:
    """Ask whether to go on, and end the command if the answer is no.

    kept: what is said then, such as "Nothing was changed."
    """
    from rescind.errors import ConfigError

    try:
        go_on = typer.confirm("Go on? This cannot be undone.", default=False)
    except typer.Abort as end:
        if isinstance(end.__context__, KeyboardInterrupt):
            raise
        typer.echo()  # the input ended, as under cron
        raise ConfigError(
            f"there was no answer. Answer y or n at a terminal, or give --yes: then it does not "
            f"ask. {kept}"
        ) from None
    if not go_on:
        typer.echo(kept)
        raise typer.Exit(1)
