"""What does an engineer read who was woken at night? One Markdown report per experiment.

`load` reads the database into a `view`, `numbers` computes what each rank did by the judge's own
functions, `markdown` is a pure function from view to text (its parts in `sections` and `gates`),
`plots` draws the pictures beside it, `field` holds the figures of the source reports.
"""
