"""The report of an experiment: one page of summary, details below it.

`load` reads the database into a `view`. `summary` and `details` turn the view into Markdown, and
`pictures` chooses its charts. `html` makes one page of them, and `files` saves and serves both.
"""
