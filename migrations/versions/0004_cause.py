"""Why a decision is not GO, beside its verdict: lists quote it without reading whole documents."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; decisions that are there have none."""
    op.add_column("decisions", sa.Column("cause", sa.JSON(none_as_null=True), nullable=True))
