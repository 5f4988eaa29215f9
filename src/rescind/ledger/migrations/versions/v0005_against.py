"""How the person of an event stood against the last release: who counts for the next one."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("event", sa.Column("against", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("event", "against")
