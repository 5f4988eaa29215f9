"""The tables of the first version."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:

    op.create_table(
        "agent",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("public_key", sa.Text(), nullable=False),
        sa.Column("token", sa.LargeBinary(length=32), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "answered",
        sa.Column("lookup", sa.LargeBinary(length=32), nullable=False),
        sa.Column("body", sa.LargeBinary(length=32), nullable=False),
        sa.Column("slot", sa.BigInteger(), nullable=False),
        sa.Column("box", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("lookup"),
    )
    op.create_index(op.f("ix_answered_at"), "answered", ["at"], unique=False)
    op.create_table(
        "audit",
        sa.Column("n", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("release", sa.BigInteger(), nullable=True),
        sa.Column("job", sa.Text(), nullable=True),
        sa.Column("records", sa.Integer(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("n"),
    )
    op.create_table(
        "checkpoint",
        sa.Column("size", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("root", sa.LargeBinary(length=32), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("cosignatures", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("size"),
    )
    op.create_table(
        "credential",
        sa.Column("lookup", sa.LargeBinary(length=32), nullable=False),
        sa.Column("person", sa.LargeBinary(length=16), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("box", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("lookup"),
    )
    op.create_index(op.f("ix_credential_person"), "credential", ["person"], unique=False)
    op.create_table(
        "event",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("person", sa.LargeBinary(length=16), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("leaf", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index(op.f("ix_event_person"), "event", ["person"], unique=False)
    op.create_table(
        "job",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("recipe", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=True),
        sa.Column("stale", sa.Boolean(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "leaf",
        sa.Column("n", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("entry", sa.LargeBinary(length=33), nullable=False),
        sa.Column("hash", sa.LargeBinary(length=32), nullable=False),
        sa.PrimaryKeyConstraint("n"),
    )
    op.create_table(
        "operator",
        sa.Column("id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("lookup", sa.LargeBinary(length=32), nullable=True),
        sa.Column("public_key", sa.LargeBinary(), nullable=True),
        sa.Column("counter", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_operator_lookup"), "operator", ["lookup"], unique=False)
    op.create_table(
        "person",
        sa.Column("id", sa.LargeBinary(length=16), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("account_key", sa.BigInteger(), nullable=True),
        sa.Column("loans_key", sa.BigInteger(), nullable=True),
        sa.Column("box", sa.LargeBinary(), nullable=True),
        sa.Column("lent", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "release",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("people", sa.Integer(), nullable=False),
        sa.Column("sum_digest", sa.Text(), nullable=False),
        sa.Column("weights_digest", sa.Text(), nullable=False),
        sa.Column("key", sa.BigInteger(), nullable=True),
        sa.Column("audit", sa.Text(), nullable=True),
        sa.Column("leaf", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("number"),
    )
    op.create_table(
        "request",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("person", sa.LargeBinary(length=16), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("expected_by", sa.BigInteger(), nullable=False),
        sa.Column("hidden_at", sa.BigInteger(), nullable=True),
        sa.Column("erased_at", sa.BigInteger(), nullable=True),
        sa.Column("summed_at", sa.BigInteger(), nullable=True),
        sa.Column("served_at", sa.BigInteger(), nullable=True),
        sa.Column("issued_at", sa.BigInteger(), nullable=True),
        sa.Column("asked", sa.Text(), nullable=True),
        sa.Column("receipt_slot", sa.BigInteger(), nullable=True),
        sa.Column("receipt_key", sa.LargeBinary(), nullable=True),
        sa.Column("receipt", sa.LargeBinary(), nullable=True),
        sa.Column("leaf", sa.BigInteger(), nullable=True),
        sa.Column("receipt_leaf", sa.BigInteger(), nullable=True),
        sa.Column("release", sa.BigInteger(), nullable=True),
        sa.Column("link", sa.LargeBinary(length=32), nullable=True),
        sa.Column("link_until", sa.BigInteger(), nullable=True),
        sa.Column("agent", sa.Text(), nullable=True),
        sa.Column("agent_ref", sa.Text(), nullable=True),
        sa.Column("code", sa.LargeBinary(length=32), nullable=True),
        sa.Column("callback", sa.Text(), nullable=True),
        sa.Column("callback_due", sa.BigInteger(), nullable=True),
        sa.Column("callback_tries", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_request_agent"), "request", ["agent"], unique=False)
    op.create_index(op.f("ix_request_link"), "request", ["link"], unique=False)
    op.create_index(op.f("ix_request_person"), "request", ["person"], unique=False)
    op.create_index(op.f("ix_request_seq"), "request", ["seq"], unique=False)
    op.create_index(op.f("ix_request_status"), "request", ["status"], unique=False)
    op.create_table(
        "round",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("asked", sa.Integer(), nullable=True),
        sa.Column("answered", sa.Integer(), nullable=True),
        sa.Column("refused", sa.Integer(), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.Column("value", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("job", "number"),
    )
    op.create_table(
        "session",
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("person", sa.LargeBinary(length=16), nullable=True),
        sa.Column("operator", sa.LargeBinary(length=16), nullable=True),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("created", sa.BigInteger(), nullable=False),
        sa.Column("seen", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.Column("confirmed_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_index(op.f("ix_session_operator"), "session", ["operator"], unique=False)
    op.create_index(op.f("ix_session_person"), "session", ["person"], unique=False)
    op.create_table(
        "setting",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "token",
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "witness",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def downgrade() -> None:

    op.drop_table("witness")
    op.drop_table("token")
    op.drop_table("setting")
    op.drop_index(op.f("ix_session_person"), table_name="session")
    op.drop_index(op.f("ix_session_operator"), table_name="session")
    op.drop_table("session")
    op.drop_table("round")
    op.drop_index(op.f("ix_request_status"), table_name="request")
    op.drop_index(op.f("ix_request_seq"), table_name="request")
    op.drop_index(op.f("ix_request_person"), table_name="request")
    op.drop_index(op.f("ix_request_link"), table_name="request")
    op.drop_index(op.f("ix_request_agent"), table_name="request")
    op.drop_table("request")
    op.drop_table("release")
    op.drop_table("person")
    op.drop_index(op.f("ix_operator_lookup"), table_name="operator")
    op.drop_table("operator")
    op.drop_table("leaf")
    op.drop_table("job")
    op.drop_index(op.f("ix_event_person"), table_name="event")
    op.drop_table("event")
    op.drop_index(op.f("ix_credential_person"), table_name="credential")
    op.drop_table("credential")
    op.drop_table("checkpoint")
    op.drop_table("audit")
    op.drop_index(op.f("ix_answered_at"), table_name="answered")
    op.drop_table("answered")
    op.drop_table("agent")
