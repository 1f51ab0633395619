"""Reasons why a training run ends early (subclasses of TrainerStop), and their exit codes.

- `Halted`, 3: `.HALT` was seen; left at a step boundary, with a checkpoint
- `BadConfig`, 4: the order, configuration, environment or arguments are wrong
- `DataFailure`, 5: the data source cannot serve
- `NonFinite`, 6: loss or gradient norm is NaN or infinite, for good
- `NotSaved`, 1: trained to the last step, but its weights could not be written
"""

from typing import ClassVar


class TrainerStop(Exception):
    """The run ends here for a named reason; `code` is the process's exit code."""

    code: ClassVar[int] = 1


class Halted(TrainerStop):
    """`.HALT` asked the run to stop."""

    code = 3


class BadConfig(TrainerStop):
    """The configuration is wrong."""

    code = 4


class DataFailure(TrainerStop):
    """The data source cannot serve."""

    code = 5


class NonFinite(TrainerStop):
    """The loss or the gradient norm is not finite, and nothing will mend it."""

    code = 6


class NotSaved(TrainerStop):
    """A run by hand has nothing to show for its last steps: their checkpoint was not written."""
