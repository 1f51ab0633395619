"""How often would the watch end a healthy run, and how often miss a sick one? Simulated, pure.

`noise` has what is normal, and what is not. `training` and `scripted` drive the `ranks` of
a run; `run` plans runs, lets a `watcher` look at them and counts the findings. The same seed gives
the same result, in any number of parts.
"""
