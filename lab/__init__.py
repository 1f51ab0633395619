"""How often would the watch end a healthy run, and how often miss a sick one? Simulated, pure.

`plan` has the runs to simulate, `noise` what is normal and `faults` what is not. `training` and
`scripted` drive the `ranks` of a run, and `run` lets a `watcher` look at them; `tally` counts the
findings. The same seed gives the same result, in any number of parts.
"""
