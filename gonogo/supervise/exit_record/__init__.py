"""exit.json and the exit stamps: how a run and its ranks ended. Standard library only."""

from gonogo.supervise.exit_record.end_cause import ENDED_BY_ITSELF, count_programs
from gonogo.supervise.exit_record.last_lines import (
    HALTED_CODE,
    Ended,
    ended_of,
    last_error_line,
    load_tail,
    lost_a_peer,
)
from gonogo.supervise.exit_record.record import build_exit, build_refusal
from gonogo.supervise.exit_record.seals import (
    build_binding,
    count_heartbeats,
    digest_of,
    seal_file,
    seal_lines,
)

__all__ = [
    "ENDED_BY_ITSELF",
    "HALTED_CODE",
    "Ended",
    "build_binding",
    "build_exit",
    "build_refusal",
    "count_heartbeats",
    "count_programs",
    "digest_of",
    "ended_of",
    "last_error_line",
    "load_tail",
    "lost_a_peer",
    "seal_file",
    "seal_lines",
]
