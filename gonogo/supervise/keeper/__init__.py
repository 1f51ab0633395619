"""The keeper of one run. `now` is in monotonic seconds in this package."""
