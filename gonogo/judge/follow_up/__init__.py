"""What follows a verdict? Promotion, retries, confirmation, forecast."""
