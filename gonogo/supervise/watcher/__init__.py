"""The watcher of one run. `now` is in monotonic seconds; `ts` and `at` are in Unix seconds."""
