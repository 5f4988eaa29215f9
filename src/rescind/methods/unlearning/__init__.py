"""Unlearners that do not retrain, and the exact retraining to compare them with."""
