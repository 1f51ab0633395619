"""The GPU host's side: claim a run, check the host, keep and watch the trainer, ship what it says."""
