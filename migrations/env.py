"""How does Alembic reach the database? Through the connection that `service.db.store` opened."""

from alembic import context

import service.db.schema  # noqa: F401 - makes the tables known
from service.db.columns import Table

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run migrations with: python -m service db upgrade")
context.configure(
    connection=connection,
    target_metadata=Table.metadata,
    render_as_batch=True,
    compare_type=True,
    transaction_per_migration=False,
)
context.run_migrations()
