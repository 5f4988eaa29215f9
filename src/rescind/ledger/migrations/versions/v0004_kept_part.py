"""What a browser keeps and has sent to the sum."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("person", sa.Column("kept_key", sa.BigInteger(), nullable=True))
    op.add_column("person", sa.Column("kept_box", sa.LargeBinary(), nullable=True))
    op.add_column("person", sa.Column("kept_count", sa.Integer(), nullable=True))


def downgrade() -> None:
    for name in ("kept_count", "kept_box", "kept_key"):
        op.drop_column("person", name)
