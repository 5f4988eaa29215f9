"""Save and load federations, checkpoints and runs."""
