"""Until when did a run wait at its worker's engine, as its worker told last?"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, empty: of a run from before nobody knows."""
    op.add_column("progress", sa.Column("waited_until", sa.Float(53), nullable=True))
