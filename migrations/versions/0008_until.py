"""Up to which step is a run to go? Null: to the last step of its phase."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; every run of before was to go to the last step of its phase."""
    op.add_column("runs", sa.Column("until", sa.Integer(), nullable=True))
