"""HTTP in, HTTP out: one router per resource; what is decided is decided elsewhere."""
