"""Tables as typed models; migrations build the same ones.

Append-only: events, decisions, heartbeats, findings. Instants are Unix seconds (REAL, UTC); states
hold the values of the contract's enums; documents are JSON of the contract's models.
"""

from service.db.schema.callers import AlertRow as AlertRow
from service.db.schema.callers import DeliveryRow as DeliveryRow
from service.db.schema.callers import EpochRow as EpochRow
from service.db.schema.callers import EventRow as EventRow
from service.db.schema.callers import IdempotencyRow as IdempotencyRow
from service.db.schema.callers import KeyRow as KeyRow
from service.db.schema.callers import SessionRow as SessionRow
from service.db.schema.callers import WebhookRow as WebhookRow
from service.db.schema.callers import WorkerRow as WorkerRow
from service.db.schema.evidence import EvidenceRow as EvidenceRow
from service.db.schema.evidence import FindingRow as FindingRow
from service.db.schema.evidence import LogRow as LogRow
from service.db.schema.evidence import OffsetRow as OffsetRow
from service.db.schema.evidence import PieceRow as PieceRow
from service.db.schema.evidence import RecordRow as RecordRow
from service.db.schema.experiments import AccountRow as AccountRow
from service.db.schema.experiments import AssessmentRow as AssessmentRow
from service.db.schema.experiments import CampaignRow as CampaignRow
from service.db.schema.experiments import ConditionRow as ConditionRow
from service.db.schema.experiments import DecisionRow as DecisionRow
from service.db.schema.experiments import ExperimentRow as ExperimentRow
from service.db.schema.experiments import PhaseRow as PhaseRow
from service.db.schema.experiments import ProgressRow as ProgressRow
from service.db.schema.experiments import RunRow as RunRow
from service.db.schema.experiments import SpeedRow as SpeedRow
from service.db.schema.table import Table as Table
