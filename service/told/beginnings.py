"""From where does an attempt begin that was to go on? The words for one that has nothing to."""

from gonogo.contract.order import RunReason

GOING_ON = frozenset({RunReason.RESUME.value, RunReason.TAKEOVER.value})
"""Reasons of attempts that go on where the one before them stopped."""
NO_CHECKPOINT = ", from its beginning: no durable checkpoint is known"
