"""Brings a database to the present tables in one transaction (Alembic)."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection

from rescind.ledger.errors import CannotStart

FOLDER = Path(__file__).parent / "migrations"


def newest() -> str | None:
    return ScriptDirectory(str(FOLDER)).get_current_head()


def migrate(connection: Connection) -> None:
    """Go up to the present tables: all of it or nothing."""
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    with connection.begin():
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise CannotStart(
                f"this ledger was made by another version of rescind ({error}). "
                f"Install that version or a newer one."
            ) from None
