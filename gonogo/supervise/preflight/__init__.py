"""Is a host fit for a run? What is checked before the launch, with and without a service."""
