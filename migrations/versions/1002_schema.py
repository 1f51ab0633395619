"""Create today"s schema. The history of migrations begins here."""

import sqlalchemy as sa
from alembic import op

revision = "1002"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.String(length=40)
_DOCUMENT = sa.JSON(none_as_null=True)
_SECONDS = sa.Float(precision=53)


def upgrade() -> None:
    """Create every table."""
    op.create_table(
        "alerts",
        sa.Column("id", _ID, nullable=False),
        sa.Column("type", _ID, nullable=False),
        sa.Column("experiment", _ID, nullable=True),
        sa.Column("run", _ID, nullable=True),
        sa.Column("data", _DOCUMENT, nullable=False),
        sa.Column("at", _SECONDS, nullable=False),
        sa.Column("spread", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_alerts"),
    )
    op.create_index("ix_alerts_experiment", "alerts", ["experiment"])
    op.create_table(
        "campaigns",
        sa.Column("id", _ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("plan", sa.String(length=64), nullable=False),
        sa.Column("spec", _DOCUMENT, nullable=False),
        sa.Column("variants", _DOCUMENT, nullable=False),
        sa.Column("labels", _DOCUMENT, nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", _SECONDS, nullable=False),
        sa.Column("ended_at", _SECONDS, nullable=True),
        sa.Column("stop", _DOCUMENT, nullable=True),
        sa.Column("comparison", _DOCUMENT, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_campaigns"),
    )
    op.create_index("ix_campaigns_state", "campaigns", ["state"])
    op.create_table(
        "experiments",
        sa.Column("id", _ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("plan", sa.String(length=64), nullable=False),
        sa.Column("resolved", _DOCUMENT, nullable=False),
        sa.Column("labels", _DOCUMENT, nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("outcome", _DOCUMENT, nullable=True),
        sa.Column("verdict", sa.String(length=20), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", _SECONDS, nullable=False),
        sa.Column("started_at", _SECONDS, nullable=True),
        sa.Column("ended_at", _SECONDS, nullable=True),
        sa.Column("event_seq", sa.Integer(), nullable=False),
        sa.Column("decision_seq", sa.Integer(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("frozen", _DOCUMENT, nullable=False),
        sa.Column("stop", _DOCUMENT, nullable=True),
        sa.Column("needs", sa.Text(), nullable=True),
        sa.Column("origin", _DOCUMENT, nullable=True),
        sa.Column("campaign", _ID, nullable=True),
        sa.Column("variant", sa.String(length=64), nullable=True),
        sa.Column("repeat", sa.Integer(), nullable=True),
        sa.Column("awaiting", _DOCUMENT, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_experiments"),
    )
    op.create_index("ix_experiments_campaign", "experiments", ["campaign"])
    op.create_index("ix_experiments_state_id_ended_at", "experiments", ["state", "id", "ended_at"])
    op.create_table(
        "idempotency",
        sa.Column("actor", _ID, nullable=False),
        sa.Column("route", sa.String(length=120), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("body_digest", sa.String(length=64), nullable=False),
        sa.Column("answer", _DOCUMENT, nullable=True),
        sa.Column("created_at", _SECONDS, nullable=False),
        sa.PrimaryKeyConstraint("actor", "route", "key", name="pk_idempotency"),
    )
    op.create_index("ix_idempotency_created_at", "idempotency", ["created_at"])
    op.create_table(
        "keys",
        sa.Column("id", _ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", _SECONDS, nullable=False),
        sa.Column("revoked_at", _SECONDS, nullable=True),
        sa.Column("home", sa.String(length=12), nullable=True),
        sa.Column("worker", sa.String(length=128), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.UniqueConstraint("hash", name="uq_keys_hash"),
    )
    op.create_table(
        "webhooks",
        sa.Column("id", _ID, nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("types", _DOCUMENT, nullable=False),
        sa.Column("created_at", _SECONDS, nullable=False),
        sa.Column("disabled_at", _SECONDS, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
    )
    op.create_table(
        "workers",
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("machine", sa.String(length=32), nullable=True),
        sa.Column("seen_at", _SECONDS, nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("claim", _DOCUMENT, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_workers"),
    )
    op.create_table(
        "conditions",
        sa.Column("experiment", _ID, nullable=False),
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("phase", sa.String(length=64), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("document", _DOCUMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment"], ["experiments.id"], name="fk_conditions_experiment", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("experiment", "id", name="pk_conditions"),
    )
    op.create_table(
        "decisions",
        sa.Column("id", _ID, nullable=False),
        sa.Column("experiment", _ID, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(length=64), nullable=True),
        sa.Column("run", _ID, nullable=True),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("verdict", sa.String(length=20), nullable=True),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("at", _SECONDS, nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("cause", _DOCUMENT, nullable=True),
        sa.ForeignKeyConstraint(
            ["experiment"], ["experiments.id"], name="fk_decisions_experiment", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_decisions"),
        sa.UniqueConstraint("experiment", "seq", name="uq_decisions_experiment_seq"),
    )
    op.create_index("ix_decisions_run", "decisions", ["run"])
    op.create_table(
        "deliveries",
        sa.Column("alert", _ID, nullable=False),
        sa.Column("webhook", _ID, nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due_at", _SECONDS, nullable=False),
        sa.Column("delivered_at", _SECONDS, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["alert"], ["alerts.id"], name="fk_deliveries_alert", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["webhook"], ["webhooks.id"], name="fk_deliveries_webhook", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("alert", "webhook", name="pk_deliveries"),
    )
    op.create_index("ix_deliveries_state_due_at", "deliveries", ["state", "due_at"])
    op.create_table(
        "events",
        sa.Column("id", _ID, nullable=False),
        sa.Column("experiment", _ID, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("cursor", sa.BigInteger(), nullable=True),
        sa.Column("type", _ID, nullable=False),
        sa.Column("run", _ID, nullable=True),
        sa.Column("phase", sa.String(length=64), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("at", _SECONDS, nullable=False),
        sa.Column("data", _DOCUMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment"], ["experiments.id"], name="fk_events_experiment", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.UniqueConstraint("experiment", "seq", name="uq_events_experiment_seq"),
    )
    op.create_index("ix_events_cursor", "events", ["cursor"], unique=True)
    op.create_table(
        "phases",
        sa.Column("experiment", _ID, nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("verdict", sa.String(length=20), nullable=True),
        sa.Column("approved_by", sa.Text(), nullable=True),
        sa.Column("init_from", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(
            ["experiment"], ["experiments.id"], name="fk_phases_experiment", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("experiment", "name", name="pk_phases"),
    )
    op.create_table(
        "runs",
        sa.Column("id", _ID, nullable=False),
        sa.Column("experiment", _ID, nullable=False),
        sa.Column("phase", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(length=20), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("resume_from", _DOCUMENT, nullable=True),
        sa.Column("change", _DOCUMENT, nullable=True),
        sa.Column("carried", _DOCUMENT, nullable=True),
        sa.Column("profile", sa.String(length=64), nullable=True),
        sa.Column("gpus", sa.Integer(), nullable=True),
        sa.Column("foreign", sa.Boolean(), nullable=True),
        sa.Column("order", _DOCUMENT, nullable=True),
        sa.Column("suspect", sa.Boolean(), nullable=False),
        sa.Column("lost", sa.Boolean(), nullable=False),
        sa.Column("given_up", sa.Boolean(), nullable=True),
        sa.Column("outcome", _DOCUMENT, nullable=True),
        sa.Column("verdict", sa.String(length=20), nullable=True),
        sa.Column("judged", sa.Boolean(), nullable=False),
        sa.Column("worker", sa.String(length=128), nullable=True),
        sa.Column("claim", sa.String(length=64), nullable=True),
        sa.Column("host", sa.Text(), nullable=True),
        sa.Column("machine", sa.String(length=32), nullable=True),
        sa.Column("boot_id", sa.Text(), nullable=True),
        sa.Column("dir", sa.Text(), nullable=True),
        sa.Column("command", _DOCUMENT, nullable=True),
        sa.Column("preflight", _DOCUMENT, nullable=True),
        sa.Column("model", _DOCUMENT, nullable=True),
        sa.Column("exit", _DOCUMENT, nullable=True),
        sa.Column("sizes", _DOCUMENT, nullable=False),
        sa.Column("findings_expected", sa.BigInteger(), nullable=False),
        sa.Column("promised", _DOCUMENT, nullable=True),
        sa.Column("created_at", _SECONDS, nullable=False),
        sa.Column("claimed_at", _SECONDS, nullable=True),
        sa.Column("started_at", _SECONDS, nullable=True),
        sa.Column("ended_at", _SECONDS, nullable=True),
        sa.ForeignKeyConstraint(
            ["experiment"], ["experiments.id"], name="fk_runs_experiment", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint(
            "experiment", "phase", "attempt", name="uq_runs_experiment_phase_attempt"
        ),
    )
    op.create_index("ix_runs_judged_state", "runs", ["judged", "state"])
    op.create_index("ix_runs_state_created_at", "runs", ["state", "created_at"])
    op.create_index("ix_runs_worker", "runs", ["worker"])
    op.create_table(
        "sessions",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("key", _ID, nullable=False),
        sa.Column("kind", sa.String(length=10), nullable=False),
        sa.Column("created_at", _SECONDS, nullable=False),
        sa.Column("expires_at", _SECONDS, nullable=False),
        sa.ForeignKeyConstraint(["key"], ["keys.id"], name="fk_sessions_key", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("hash", name="pk_sessions"),
    )
    op.create_index("ix_sessions_expires_at", "sessions", ["expires_at"])
    op.create_table(
        "assessments",
        sa.Column("run", _ID, nullable=False),
        sa.Column("attempt", _DOCUMENT, nullable=False),
        sa.Column("rules", sa.Text(), nullable=False),
        sa.Column("facts", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run"], ["runs.id"], name="fk_assessments_run", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", name="pk_assessments"),
    )
    op.create_table(
        "evidence",
        sa.Column("run", _ID, nullable=False),
        sa.Column("path", sa.String(length=400), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("truncated", sa.Boolean(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_evidence_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "path", name="pk_evidence"),
    )
    op.create_table(
        "findings",
        sa.Column("run", _ID, nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("severity", sa.String(length=10), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_findings_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "key", name="pk_findings"),
    )
    op.create_table(
        "logs",
        sa.Column("run", _ID, nullable=False),
        sa.Column("file", sa.String(length=64), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("end", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_logs_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "file", "start", name="pk_logs"),
    )
    op.create_table(
        "offsets",
        sa.Column("run", _ID, nullable=False),
        sa.Column("file", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_offsets_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "file", name="pk_offsets"),
    )
    op.create_table(
        "pieces",
        sa.Column("run", _ID, nullable=False),
        sa.Column("file", sa.String(length=64), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("end", sa.BigInteger(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=True),
        sa.Column("lines", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_pieces_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "file", "start", name="pk_pieces"),
    )
    op.create_table(
        "progress",
        sa.Column("run", _ID, nullable=False),
        sa.Column("heard", sa.BigInteger(), nullable=False),
        sa.Column("heard_at", _SECONDS, nullable=True),
        sa.Column("waited_until", _SECONDS, nullable=True),
        sa.Column("heartbeat_at", _SECONDS, nullable=True),
        sa.Column("lines", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("loss", _ID, nullable=True),
        sa.Column("toks_per_s", _SECONDS, nullable=True),
        sa.Column("identity", _DOCUMENT, nullable=True),
        sa.Column("near", _DOCUMENT, nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_progress_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", name="pk_progress"),
    )
    op.create_table(
        "records",
        sa.Column("run", _ID, nullable=False),
        sa.Column("path", sa.String(length=64), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_records_run", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run", "path", name="pk_records"),
    )
