"""How near is each detector of a run to its limit?"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, empty: telemetry fills it."""
    op.add_column("progress", sa.Column("near", sa.JSON(), nullable=True))
