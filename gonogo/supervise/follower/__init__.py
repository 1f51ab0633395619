"""Who looks at one node's part of a run that has several? `python -m gonogo.supervise.follower`."""
