"""Save federations, checkpoints and runs, and load them again."""
