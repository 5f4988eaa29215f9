"""Learn from lent records on the server, too (FedShare and its baselines)."""
