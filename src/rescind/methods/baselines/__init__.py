"""Simple recommenders that every other method has to beat."""
