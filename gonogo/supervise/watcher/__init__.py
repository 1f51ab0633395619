"""Who looks at a run, and decides to end it? The watcher; `python -m gonogo.supervise.watcher`."""
