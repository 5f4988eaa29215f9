"""Read what was given to `rescind flower`: the place of a silo, address and kit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from types import ModuleType

    from rescind.flower.deploy import Link

LOOPBACK = "127.0.0.1:7800"


def place_of(text: str) -> tuple[int, int]:
    """Return the index of a silo and the number of silos of --silo, such as 0/2."""
    from rescind.errors import ConfigError

    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and int(number) < int(count)):
        raise ConfigError(f"--silo is index/number of silos, such as 0/2 or 1/2; got '{text}'.")
    return int(number), int(count)


def check_own_folder(store: Path, kit: Path) -> None:
    """Refuse to keep the state of a silo among the keys of its kit, which is copied as silo-0."""
    from rescind.errors import ConfigError

    if store.resolve() == kit.resolve():
        raise ConfigError(
            f"{kit} is this silo's part of the kit. Name another folder for its state with --store."
        )


def check_installed() -> None:
    """Raise an error that says how to install Flower, if it is missing."""
    from rescind.errors import ConfigError, how_to_install

    try:
        import flwr  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"Flower is not installed. Run: {how_to_install('flower')} (docs/deploy.md)."
        ) from None


def deployment(
    address: str, kit: Path | None, insecure: bool, part: str
) -> tuple[ModuleType, Link]:
    """Return the deployment module and the link, after checking the security options.

    part: of the kit, which this command needs: server, operator, silo-0 ...
    """
    check_installed()
    from rescind.errors import ConfigError
    from rescind.flower import deploy

    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"an address is host:port, such as {LOOPBACK}; got '{address}'.")
    if (kit is None) != insecure:
        raise ConfigError(
            "give --kit FOLDER (made by: rescind flower kit), or --insecure for tests on one "
            "machine; " + ("both were given." if insecure else "neither was given.")
        )
    if kit is not None:
        deploy.check_part(kit, part)
    if insecure:
        typer.echo(deploy.INSECURE, err=True)
    return deploy, deploy.Link(host, int(port), None if kit is None else kit / "ca.pem")
