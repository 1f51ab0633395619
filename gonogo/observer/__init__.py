"""Observe an unchanged PyTorch program from within: its steps, losses, sections and identity.

`gonogo run` and a plan's `command` put `gonogo/observer/site` first on PYTHONPATH, where Python
finds `sitecustomize`. It waits for the import of torch. Then `hooks` wraps a few functions of
torch, `training` turns their calls into steps, and `rank` writes ordinary heartbeats.

An error of the observer never ends or changes the program: gonogo then reads the printed lines.
docs/how-to/run.md lists the programs that the observer cannot see.
"""
