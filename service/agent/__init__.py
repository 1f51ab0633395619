"""Messages of workers: claims, telemetry and reports of runs; fenced by token, exactly once."""
