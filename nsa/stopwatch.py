"""Time parts of a step: by the monotonic clock, or by events in a GPU's queue."""

import time

import torch

Moment = float | torch.cuda.Event


class Stopwatch:
    """Moments of one rank.

    Args:
        device: whose work is timed.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def now(self) -> Moment:
        """The moment when the work that is queued by now is done."""
        if not self._on_gpu:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def between_s(begin: Moment, end: Moment) -> float:
    """Seconds from one moment to another, both of which have passed."""
    if isinstance(begin, torch.cuda.Event):
        assert isinstance(end, torch.cuda.Event)
        return begin.elapsed_time(end) / 1e3
    assert not isinstance(end, torch.cuda.Event)
    return end - begin
