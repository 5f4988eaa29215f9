"""Recipes, the runs they describe, and tables of their results."""
