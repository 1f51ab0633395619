"""Where did an experiment go on that another had begun? Null: it began by itself."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; no experiment of before has an origin."""
    op.add_column("experiments", sa.Column("origin", sa.JSON(none_as_null=True), nullable=True))
