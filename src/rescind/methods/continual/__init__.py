"""Learn from a stream of blocks (F3CRec and its baselines)."""
