"""Node classification, and clients that leave (FedGCV and its baselines)."""
