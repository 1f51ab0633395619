"""Start the ranks of an order, wrap each of them, and read what their programs print."""
