"""What workers ask and tell: claims, telemetry, states of runs; fenced by token, exactly once."""
