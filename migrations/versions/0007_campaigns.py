"""What is compared with what? Campaigns, and which of their runs an experiment is."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table and the columns; no experiment of before belongs to a campaign."""
    document = sa.JSON(none_as_null=True)
    seconds = sa.Float(precision=53)
    op.create_table(
        "campaigns",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("plan", sa.String(length=64), nullable=False),
        sa.Column("spec", document, nullable=False),
        sa.Column("variants", document, nullable=False),
        sa.Column("labels", document, nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", seconds, nullable=False),
        sa.Column("ended_at", seconds, nullable=True),
        sa.Column("stop", document, nullable=True),
        sa.Column("comparison", document, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_campaigns"),
    )
    op.create_index("ix_campaigns_state", "campaigns", ["state"])
    op.add_column("experiments", sa.Column("campaign", sa.String(length=40), nullable=True))
    op.add_column("experiments", sa.Column("variant", sa.String(length=64), nullable=True))
    op.add_column("experiments", sa.Column("repeat", sa.Integer(), nullable=True))
    op.create_index("ix_experiments_campaign", "experiments", ["campaign"])
