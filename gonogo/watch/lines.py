"""Names of `gonogo.timeline.lines`, until every detector imports them from there."""

from gonogo.timeline.lines import Arrival, BootLines

__all__ = ["Arrival", "BootLines"]
