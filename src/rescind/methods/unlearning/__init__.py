"""Forget without retraining, and the exact retraining they are compared with."""
