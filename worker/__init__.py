"""The GPU host's side: claim, check the host, keep and watch the trainer, ship what it says."""
