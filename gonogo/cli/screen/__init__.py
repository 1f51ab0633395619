"""How does a command show itself on a terminal? Help, tables, times, what is waited for."""
