"""Where did the time of each run go? Its account, taken forward while it goes on."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_PARTS = (
    *("productive", "preserved", "queue", "start", "restart", "evaluation", "checkpoint"),
    *("between_steps", "stall", "halt", "repeated", "decision", "unknown"),
)


def upgrade() -> None:
    """Add the table; runs of before get their account from their lines, a few at a time."""
    seconds = sa.Float(precision=53)
    op.create_table(
        "accounts",
        sa.Column("run", sa.String(length=40), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("told", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("at", seconds, nullable=False),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.Column("devices", sa.Integer(), nullable=False),
        *(sa.Column(f"{part}_s", seconds, nullable=False) for part in _PARTS),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.id"], name="fk_accounts_run_runs", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", name="pk_accounts"),
    )
