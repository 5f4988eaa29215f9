"""The tables of the first release. What changes them later is a migration of its own."""

from alembic import op

from rescind.ledger.tables import metadata

revision = "0001"
down_revision = None


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)
