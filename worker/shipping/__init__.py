"""Ships the contents of a run directory to the control plane."""
