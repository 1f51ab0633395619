"""How fast was this work before? One row for each work on each kind of device."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table; what ran before is not in it."""
    op.create_table(
        "speeds",
        sa.Column("work", sa.String(length=64), nullable=False),
        sa.Column("step_s", sa.Float(precision=53), nullable=False),
        sa.Column("run", sa.String(length=40), nullable=False),
        sa.PrimaryKeyConstraint("work", name="pk_speeds"),
    )
