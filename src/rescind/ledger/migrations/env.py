"""How Alembic runs a migration: on the connection it is given, in the caller's transaction."""

from alembic import context

from rescind.ledger.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,  # SQLite can, with transactions begun by us (see Store)
    render_as_batch=False,
)
context.run_migrations()
