"""Which commands only look? Status, workers, alerts, decisions, artifacts, the page."""
