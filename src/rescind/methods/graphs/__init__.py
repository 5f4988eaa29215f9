"""Node classification and the removal of clients: FedGCV and its baselines."""
