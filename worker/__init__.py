"""The GPU host's side of the service: claim, check the host, start a keeper, ship what it sees."""
