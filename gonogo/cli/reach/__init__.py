"""How does a command reach what it is about? Service, key, names, completion, events."""
