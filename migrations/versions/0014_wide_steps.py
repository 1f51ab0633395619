"""How many steps may a trainer of anyone's count? As many as a line may say."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Widen the columns; SQLite's have no width."""
    if op.get_bind().dialect.name == "sqlite":
        return
    op.alter_column("progress", "step", type_=sa.BigInteger())
    op.alter_column("runs", "findings_expected", type_=sa.BigInteger())
