"""What `python -m bench.gpu` measures: one module a stage, and the pure halves of them.

- `plan`: the stages in order of value, what time each may take, and the exit code. Pure.
- `figures`: medians, break-even, counted work, what a row says. Pure.
- `report`: the rows as tables for a person. Pure.
- `failures`: which errors are of use to nobody after them. Pure.
- `rows`: the file that every row is appended to at once, and one stage's own deadline.
- `stopwatch`: timings on a GPU (events, CUDA graphs) and on a CPU (for the smoke test).
- `machine`, `compiling`, `correctness`, `attention`, `kernel_table`, `trainer_steps`,
  `tile_sweep`, `other_dtypes`: the stages, each `run(context)`.
"""
