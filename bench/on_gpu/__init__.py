"""What `python -m bench.gpu` measures: one module a stage, each `run(context)`."""
