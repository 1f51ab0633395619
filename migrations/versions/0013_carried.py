"""Under which remedies of earlier phases is a run made? Beside what it changes itself."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, empty: no run of before was made under any."""
    op.add_column("runs", sa.Column("carried", sa.JSON(), nullable=True))
