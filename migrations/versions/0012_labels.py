"""What must a worker say of itself to get a run? Beside the run, so that no plan is read for it."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, empty: of a run that waits from before, the plan is read as it was."""
    op.add_column("runs", sa.Column("labels", sa.Text(), nullable=True))
