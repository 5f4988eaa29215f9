"""Simple recommenders to compare other methods with."""
