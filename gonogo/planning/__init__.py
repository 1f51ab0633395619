"""How does a submission become an order? Plans found and resolved; reads files, decides nothing."""
