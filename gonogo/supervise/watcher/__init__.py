"""The watcher of a run, `python -m gonogo.supervise.watcher`: it looks, and decides to end it."""
