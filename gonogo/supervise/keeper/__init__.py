"""Who owns the processes of one run? The keeper; `python -m gonogo.supervise.keeper`."""
