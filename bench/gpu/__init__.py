"""`python -m bench.gpu`: is NSA right and fast on this GPU? One module a stage, and the command."""
