"""What holds for every request: keys, errors, pages, idempotency, versions and streams."""
