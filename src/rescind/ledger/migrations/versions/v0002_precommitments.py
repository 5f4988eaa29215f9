"""Where a generation stands in the log."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("job", sa.Column("leaf", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("job", "leaf")
