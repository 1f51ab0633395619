"""Names of `gonogo.timeline.step`, until every detector imports them from there."""

from gonogo.timeline.step import RankStep, Step

__all__ = ["RankStep", "Step"]
