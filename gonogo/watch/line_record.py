"""Names of `gonogo.timeline.boots`, until every detector imports them from there."""

from gonogo.timeline.boots import LineRecord

__all__ = ["LineRecord"]
