"""How did release 0.1 judge? Its facts, its rules and its gate, as they were, for ever.

Decisions of `judge_version` 1 replay with this code and with no other, so that a new fact, field,
detector or default changes none of them. Nothing here is mended: what release 0.1 got wrong, it
got wrong. Records are plain JSON; only names that cannot change are shared with the present code.
"""
