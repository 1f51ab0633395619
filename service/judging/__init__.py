"""How a run that ended is judged: written out, assessed by a child, decided, recorded."""
