"""The report of an experiment: one page of summary, details below it.

`view` is read from the database. `summary` and `details` turn it into Markdown, and `pictures`
chooses its charts. `files` makes one page of them, and saves and serves both.
"""
