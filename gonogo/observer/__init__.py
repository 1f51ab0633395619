"""Observe an unchanged PyTorch program from within: its steps, losses, sections and identity.

`gonogo run` and a plan's `command` put `gonogo/observer/site` first on PYTHONPATH. Python imports
`sitecustomize` from there in each process, which waits for the import of torch. Then `hooks` wraps
a few functions of torch, `training` turns their calls into steps, and `batched_writer` writes
ordinary heartbeats. A program that attaches itself (`gonogo.trainer`) is left alone.

Guaranteed: an error of the observer never ends or changes the program; the observer then says that
it no longer observes, and the printed lines are read instead. No device is synchronised.

Not covered: Python before 3.11; a program that clears PYTHONPATH or starts Python with `-I` or
`-E`; optimizers that do not derive from `torch.optim.Optimizer`; CUDA graphs of whole steps; JAX,
TensorFlow and MLX. Such programs are known by what they print.
"""
