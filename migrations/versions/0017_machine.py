"""On which machine was a run claimed? Host names repeat."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, empty: the host of a run from before is known by its name."""
    op.add_column("runs", sa.Column("machine", sa.String(32), nullable=True))
