"""The report of an experiment: one page of summary, details below it.

`view` is read from the database and chooses the charts. `summary` and `details` turn it into
Markdown. `files` makes one page of them, and saves and serves both.
"""
