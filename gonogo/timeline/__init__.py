"""The timeline of a run: heartbeat lines and ticks as boots, steps and sections."""
