"""All that a run left, byte by byte: pieces of growing files, small records, what was promised."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables of pieces and records, and the column of promises."""
    op.create_table(
        "pieces",
        sa.Column("run", sa.String(length=40), nullable=False),
        sa.Column("file", sa.String(length=64), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("end", sa.BigInteger(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_pieces_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "file", "start", name="pk_pieces"),
    )
    op.create_table(
        "records",
        sa.Column("run", sa.String(length=40), nullable=False),
        sa.Column("path", sa.String(length=64), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_records_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "path", name="pk_records"),
    )
    op.add_column("runs", sa.Column("promised", sa.JSON(none_as_null=True), nullable=True))
