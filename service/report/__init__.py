"""The report of an experiment: one page of summary, details below it.

`load` reads the database into a `view`. `summary` and `details` are pure functions from the view to
Markdown, `pictures` chooses the charts and `charts` draws them. `writing` puts the files into
the home, and `html` makes one page of them.
"""
