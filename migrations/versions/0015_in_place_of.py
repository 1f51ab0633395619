"""In place of which key was a local one made? Beside it, so that it has that one's worker alone."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, empty: of a key from before nobody knows."""
    op.add_column("keys", sa.Column("in_place_of", sa.String(40), nullable=True))
