"""What is started for an order, and what stands around each rank? Standard library only."""
