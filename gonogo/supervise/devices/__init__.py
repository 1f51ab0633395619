"""Which devices has a run, and what do they say of themselves?

`protocol` are the calls that a device answers; `nvml` and `scripted` answer them, `choice` picks
one of the two. `look` asks once before the launch, `sampler` goes on asking while a run lives, and
`lines` hands its samples to the watcher.
"""
