"""Names of `gonogo.timeline.rank`, until every detector imports them from there."""

from gonogo.timeline.rank import NAMED_SECTIONS, SECTION_SAMPLES, RankStream

__all__ = ["NAMED_SECTIONS", "SECTION_SAMPLES", "RankStream"]
