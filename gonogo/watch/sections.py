"""Names of `gonogo.timeline.place`, until every detector imports them from there."""

from gonogo.timeline.place import NAMED_APART

__all__ = ["NAMED_APART"]
