"""The devices of a run: which ones it has, what they report, and whether they are free again."""
