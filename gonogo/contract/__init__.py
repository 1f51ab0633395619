"""The documents that processes exchange, as pydantic models; imports nothing else of gonogo."""
