"""Who is who: keys by home and worker, workers by machine, claims by secret, tokens by epoch.

And what a queued run needs of a worker, so that no plan is read to find one; and whether what an
ended one promised is waited for no more.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_NEW = (
    ("keys", "home", 12),
    ("keys", "worker", 128),
    ("workers", "machine", 32),
    ("runs", "claim", 64),
    ("runs", "profile", 64),
)


def upgrade() -> None:
    """Add the columns, empty: what was there before stays as it is and is checked less."""
    for table, name, length in _NEW:
        op.add_column(table, sa.Column(name, sa.String(length), nullable=True))
    op.add_column("runs", sa.Column("gpus", sa.Integer(), nullable=True))
    op.add_column("runs", sa.Column("foreign", sa.Boolean(), nullable=True))
    op.add_column("runs", sa.Column("given_up", sa.Boolean(), nullable=True))
    op.create_table(
        "epochs",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_epochs"),
    )
