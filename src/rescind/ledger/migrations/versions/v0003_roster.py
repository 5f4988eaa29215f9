"""The roster: hidden lines of what people add to the sum, and what was stated about them."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:

    op.create_table(
        "roster",
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("part", sa.Text(), nullable=False),
        sa.Column("person", sa.LargeBinary(length=16), nullable=True),
        sa.Column("box", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index(op.f("ix_roster_person"), "roster", ["person"], unique=False)
    op.create_table(
        "roster_stated",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("release", sa.BigInteger(), nullable=False),
        sa.Column("stated", sa.LargeBinary(), nullable=False),
        sa.Column("total", sa.LargeBinary(), nullable=False),
        sa.Column("leaf", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
    )


def downgrade() -> None:

    op.drop_table("roster_stated")
    op.drop_index(op.f("ix_roster_person"), table_name="roster")
    op.drop_table("roster")
